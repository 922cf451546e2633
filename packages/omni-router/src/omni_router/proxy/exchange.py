"""One try to have a worker answer: its head and body passed on as they come.

A worker that is lost before its first byte may be asked again elsewhere. Afterwards the client is
told in the stream, and the transfer is broken, so that no half answer looks whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from omni_router.errors import BadGatewayError
from omni_router.proxy.bodies import Body, Flowing
from omni_router.proxy.headers import WORKER, passed_on
from omni_router.worker import Worker

SMALL_BYTES: Final = 64 * 1024
"""Answers up to here are read whole: one write less."""
_EVENTS: Final = "text/event-stream"
_EVENT_END: Final = b"\n\n"
_UNBEGUN: Final = frozenset({"not_ready", "draining", "paused", "overloaded"})
"""Codes with which a worker says that it has not begun a request."""
_AUDIO_ID: Final = ".audio.id"
"""End of the `param` of a spoken reply that a worker does not know."""
_BAD_REQUEST: Final = 400
_UNAVAILABLE: Final = 503
_MAY_BE_UNBEGUN: Final = (_BAD_REQUEST, _UNAVAILABLE)
_BODILESS: Final = (204, 304)
_IDEMPOTENT: Final = ("GET", "HEAD")


class NotBegunError(Exception):
    """The worker has not begun the request: another may get it."""

    def __init__(
        self,
        why: str,
        *,
        is_fault: bool = False,
        is_elsewhere: bool = False,
        answer: web.Response | None = None,
    ) -> None:
        """`is_fault`: the worker could not be reached. `is_elsewhere`: another has what the request
        names. `answer`: what the worker said, if it could."""
        super().__init__(why)
        self.is_fault = is_fault
        self.is_elsewhere = is_elsewhere
        self.answer = answer


class WorkerLostError(BadGatewayError):
    """Nobody knows how far the worker came."""

    def __init__(self, worker: Worker, why: str) -> None:
        super().__init__(
            f"The worker {worker.name} broke off before it answered ({why}); it may have begun. "
            "Ask again if that does no harm.",
            retry_after_s=1,
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as workers are to see it."""

    method: str
    target: str
    """Path and query, as the client wrote them."""
    headers: CIMultiDict[str]
    body: Body


OnHead: TypeAlias = Callable[[Mapping[str, str]], None]


def ignored(headers: Mapping[str, str]) -> None:
    """An `OnHead` that needs nothing."""


class Exchange:
    """Between one client and one worker."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        worker: Worker,
        asked: Asked,
        request: web.BaseRequest,
        on_head: OnHead = ignored,
    ) -> None:
        """`on_head` is told of the headers of the answer, as soon as they are there."""
        self._session = session
        self._worker = worker
        self._asked = asked
        self._request = request
        self._on_head = on_head
        self._out: web.StreamResponse | None = None
        """Once the client has its head."""
        self._ends_an_event = True
        self._cut = ""
        """Why somebody here ends it, if they do."""
        self.lost = ""
        """Why the worker broke off after its first byte, if it did."""

    async def run(self) -> web.StreamResponse:
        """The response, sent if it is a long one.

        NotBegunError if another may be asked; WorkerLostError if nobody knows how far it came.
        """
        try:
            async with asyncio.timeout(None) as scope:
                loop = asyncio.get_running_loop()

                def cut(why: str) -> None:
                    self._cut = why
                    scope.reschedule(loop.time())

                self._worker.cuts[self] = cut
                response = await self._begin()
                self._on_head(response.headers)
                return await self._answer(response)
        except TimeoutError:
            if self._out is None:
                raise WorkerLostError(self._worker, self._cut) from None
            return await self._break_off(self._out, self._cut)
        finally:
            del self._worker.cuts[self]

    async def _begin(self) -> aiohttp.ClientResponse:
        """The head of the answer."""
        asked, body = self._asked, self._asked.body
        try:
            return await self._session.request(
                asked.method,
                URL(self._worker.url + asked.target, encoded=True),
                headers=asked.headers,
                data=body.to_send(),
                allow_redirects=False,
            )
        except aiohttp.ClientError as error:
            if isinstance(body, Flowing) and body.error is not None:
                raise body.error from error
            unsent = isinstance(
                error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
            )
            raise self._unanswered(error, unsent=unsent) from error

    def _unanswered(self, error: Exception, *, unsent: bool) -> NotBegunError | WorkerLostError:
        if self._asked.body.can_repeat and (unsent or self._asked.method in _IDEMPOTENT):
            return NotBegunError(_told(error), is_fault=True)
        return WorkerLostError(self._worker, _told(error))

    async def _answer(self, response: aiohttp.ClientResponse) -> web.StreamResponse:
        length = response.content_length
        is_whole = False
        try:
            if response.status in _BODILESS or (length is not None and length <= SMALL_BYTES):
                out: web.StreamResponse = await self._small(response)
            else:
                out = await self._relay(response)
            is_whole = not self.lost
            return out
        finally:
            response.release() if is_whole else response.close()

    async def _small(self, response: aiohttp.ClientResponse) -> web.Response:
        try:
            data = await response.read()
        except aiohttp.ClientError as error:
            raise self._unanswered(error, unsent=False) from error
        headers = passed_on(response.headers)
        headers[WORKER] = self._worker.name
        if self._asked.method != "HEAD":
            headers.popall("Content-Length", None)
        answer = web.Response(
            body=data, status=response.status, reason=response.reason, headers=headers
        )
        if response.status in _MAY_BE_UNBEGUN and self._asked.body.can_repeat:
            self._check_begun(answer, data)
        return answer

    def _check_begun(self, answer: web.Response, data: bytes) -> None:
        """NotBegunError if the answer says that another worker may do better."""
        error = _error_in(data)
        if answer.status == _UNAVAILABLE and error.code in _UNBEGUN:
            raise NotBegunError(error.code, answer=answer)
        is_audio = self._asked.body.needs.names_audio and (error.param or "").endswith(_AUDIO_ID)
        if answer.status == _BAD_REQUEST and is_audio:
            raise NotBegunError("unknown audio id", is_elsewhere=True, answer=answer)

    async def _relay(self, response: aiohttp.ClientResponse) -> web.StreamResponse:
        out = web.StreamResponse(
            status=response.status, reason=response.reason, headers=passed_on(response.headers)
        )
        out.headers[WORKER] = self._worker.name
        if response.content_length is None:
            out.enable_chunked_encoding()
        self._asked.body.begun()
        await out.prepare(self._request)
        self._out = out
        is_events = response.content_type == _EVENTS
        while True:
            try:
                piece = await response.content.readany()
            except aiohttp.ClientError as error:
                self._ends_an_event &= is_events
                return await self._break_off(out, _told(error))
            if not piece:
                break
            self._ends_an_event = is_events and piece.endswith(_EVENT_END)
            await out.write(piece)
        await out.write_eof()
        return out

    async def _break_off(self, out: web.StreamResponse, why: str) -> web.StreamResponse:
        """Tell the client, and end the transfer without the end that HTTP gives a whole one."""
        self.lost = why
        if self._ends_an_event:
            error = BadGatewayError(f"The worker {self._worker.name} broke off: {why}.")
            await out.write(b"data: " + error.body() + _EVENT_END)
        if self._request.transport is not None:
            self._request.transport.close()
        return out


class _Error(msgspec.Struct):
    code: str | None = None
    param: str | None = None


class _Envelope(msgspec.Struct):
    error: _Error


def _error_in(data: bytes) -> _Error:
    """An OpenAI error object; an empty one if it is none."""
    try:
        return msgspec.json.decode(data, type=_Envelope).error
    except (msgspec.DecodeError, RecursionError):
        return _Error()


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
