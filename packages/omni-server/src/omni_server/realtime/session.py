"""One session: what a client says, what becomes of it, and what the server does by itself.

Knows events, settings and turns. Knows no socket: text comes in, events go out through `put`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final, assert_never

import msgspec

from omni_core.errors import OmniError, RequestError
from omni_server.errors import error_object, internal_error
from omni_server.offload import LONG_BODY_BYTES, off_loop
from omni_server.realtime import events
from omni_server.realtime.abilities import Abilities
from omni_server.realtime.answer import Answer, Asked
from omni_server.realtime.answers import Answers
from omni_server.realtime.dialect import Dialect
from omni_server.realtime.editor import Editor
from omni_server.realtime.events import ClientEvent, decode_event, event_id_of
from omni_server.realtime.formats import Pcm, base64_bytes, decode_audio
from omni_server.realtime.idle import IdleTimer
from omni_server.realtime.items import Item, Json, MessageItem, Sound, new_id
from omni_server.realtime.listener import Heard, Listener, TurnBegan, TurnEnded
from omni_server.realtime.scribe import Scribe
from omni_server.realtime.settings import (
    ResponseSettings,
    SessionSettings,
    SessionType,
    for_response,
    updated,
)
from omni_server.realtime.shared import Shared
from omni_server.realtime.together import Runner
from omni_server.realtime.vad import SpeechModel

LEAST_COMMIT_MS: Final = 100
MOST_TURN_S: Final = 600.0
_LONG_SOUND: Final = 256 * 1024
"""Characters of base64 that take a millisecond."""
_LONG_TURN: Final = 2 * 1024 * 1024
"""Samples that are copied in a millisecond or two."""
log = logging.getLogger("omni.server")


class Session:
    """Hears one event after the other."""

    def __init__(
        self,
        shared: Shared,
        abilities: Abilities,
        dialect: Dialect,
        kind: SessionType,
        model: SpeechModel | None,
        threads: Runner,
    ) -> None:
        """`model` tells speech, in `threads`."""
        self.settings = abilities.first_settings(kind)
        self._shared, self._abilities, self._dialect = shared, abilities, dialect
        heard = self.settings.audio.input
        self._most_s = min(MOST_TURN_S, shared.server.settings.media.max_audio_seconds)
        self._listener = Listener(heard.format.format, model, threads, self._most_s)
        self._listener.detect(heard.turn_detection)
        self._answers = Answers(shared, self._answered)
        self._scribe = Scribe(shared)
        self._editor = Editor(shared, self._scribe)
        self._idle = IdleTimer(self._timed_out)
        self._turn_id = new_id("item")
        """Of the item that the next turn becomes."""
        self._waiting: Json | None = None
        """What is asked of the answer to what was said while something else was being answered."""
        self._is_own = self._has_news = False
        """What is being answered, the server began by itself; the client has said more since."""
        self._was_prompted = False
        """The last that was answered was silence."""
        self._has_spoken = self._is_closed = False

    def greet(self) -> None:
        """What a client waits for."""
        self._put({"type": "session.created", "session": self._session_object()})

    async def hear(self, text: str) -> None:
        """One event; what is wrong with it is told, and the session goes on."""
        event: ClientEvent | None = None
        is_long = len(text) > LONG_BODY_BYTES
        try:
            event = await off_loop(partial(decode_event, text), if_=is_long)
            await self._handle(event)
        except OmniError as error:
            if event is None:
                event_id = await off_loop(partial(event_id_of, text), if_=is_long)
            else:
                event_id = event.event_id
            self.refuse(error, event_id)
        except Exception as error:  # the request edge: the session goes on
            log.exception("an event failed")
            self.refuse(internal_error(error), None if event is None else event.event_id)

    def refuse(self, error: OmniError, event_id: str | None = None) -> None:
        """Tell an error."""
        told = {**error_object(error)["error"], "event_id": event_id}
        self._put({"type": "error", "error": told})

    async def quiet(self) -> None:
        """Wait until nothing is being answered or written down."""
        await self._answers.none_run.wait()
        await self._scribe.idle()

    async def close(self) -> None:
        """End all that runs."""
        self._is_closed = True
        self._idle.stop()
        await self._answers.close()
        await self._scribe.close()

    async def _handle(self, event: ClientEvent) -> None:
        match event:
            case events.AudioAppend():
                await self._append(event.audio)
            case events.SessionUpdate() | events.TranscriptionUpdate():
                await self._update(self._dialect.settings(event))
            case events.AudioCommit():
                await self._commit()
            case events.AudioClear():
                self._listener.clear()
                self._put({"type": "input_audio_buffer.cleared"})
            case events.OutputClear():
                raise RequestError(
                    "output_audio_buffer.clear is for calls over WebRTC and SIP; over a WebSocket, "
                    "stop what you play, and send conversation.item.truncate.",
                    code="unsupported_event",
                )
            case events.ItemCreate():
                item = await asyncio.to_thread(self._parse, event.item, "item")
                self._somebody_is_there()
                self._editor.add_written(item, self.settings, event.previous_item_id)
                self._has_news = self._is_own
            case events.ItemRetrieve():
                await self._editor.show(event.item_id)
            case events.ItemTruncate():
                self._editor.truncate(event)
            case events.ItemDelete():
                self._editor.delete(event.item_id)
            case events.ResponseCreate():
                await self._respond(event.response or {})
            case events.ResponseCancel():
                await self._answers.cancel(event.response_id, "client_cancelled")
            case _:
                assert_never(event)

    # settings

    def _updated(self, changes: Json) -> SessionSettings:
        return self._abilities.checked_session(updated(self.settings, changes))

    async def _update(self, changes: Json) -> None:
        """All of the changes, or none."""
        before, settings = self.settings, await asyncio.to_thread(self._updated, changes)
        voice = settings.audio.output.voice
        if self._has_spoken and voice != before.audio.output.voice:
            raise RequestError(
                "'session.audio.output.voice' cannot change once the session has spoken.",
                param="session.audio.output.voice",
                code="cannot_update_voice",
            )
        heard = settings.audio.input
        if heard.format.format != self._listener.format:
            if self._listener.speaks:
                raise RequestError(
                    "'session.audio.input.format' cannot change while somebody speaks.",
                    param="session.audio.input.format",
                )
            self._listener.change_format(heard.format.format)
        self._listener.detect(heard.turn_detection)
        self.settings = settings
        self._idle.change(self._idle_s)
        self._put({"type": "session.updated", "session": self._session_object()})

    def _session_object(self) -> Json:
        shown: Json = msgspec.to_builtins(self.settings)
        shown |= {"id": self._shared.session_id, "object": "realtime.session"}
        shown["audio"]["input"]["format"] = self.settings.audio.input.format.format.json
        shown["audio"]["output"]["format"] = self.settings.audio.output.format.format.json
        if self.settings.audio.input.turn_detection is not None:
            del shown["audio"]["input"]["turn_detection"]["eagerness"]
        if self.settings.type == "transcription":
            names = ("id", "object", "type", "audio", "include")
            shown = {name: shown[name] for name in names}
            shown["object"] = "realtime.transcription_session"
            del shown["audio"]["output"]
        return shown

    # sound

    async def _append(self, audio: str) -> None:
        if not self._abilities.hears:
            takes = ", ".join(self._shared.pipeline.info.input_modalities)
            raise RequestError(
                f"The served model takes no sound; it takes {takes}.",
                param="audio",
                code="unsupported_value",
            )
        if base64_bytes(audio) / self._listener.format.bytes_per_s > self._listener.room_s:
            raise RequestError(
                f"The input buffer holds {self._most_s:g} s of sound at most, and has "
                f"{self._listener.waiting_s:.0f} s; commit or clear it.",
                param="audio",
                code="input_audio_buffer_full",
            )
        data = await off_loop(partial(decode_audio, audio, "audio"), if_=len(audio) > _LONG_SOUND)
        with self._idle.held():
            async for heard in self._listener.push(data):
                await self._notice(heard)

    async def _notice(self, heard: Heard) -> None:
        detection = self.settings.audio.input.turn_detection
        match heard:
            case TurnBegan(start_ms=start_ms):
                self._somebody_is_there()
                self._put(
                    {
                        "type": "input_audio_buffer.speech_started",
                        "audio_start_ms": start_ms,
                        "item_id": self._turn_id,
                    }
                )
                if detection is not None and detection.interrupt_response:
                    self._waiting = None
                    await self._answers.interrupt()
            case TurnEnded(end_ms=end_ms, samples=samples):
                self._put(
                    {
                        "type": "input_audio_buffer.speech_stopped",
                        "audio_end_ms": end_ms,
                        "item_id": self._turn_id,
                    }
                )
                self._add_turn(await self._sound(samples))
                if detection is not None and detection.create_response:
                    self._answer_turn()

    async def _commit(self) -> None:
        if self._listener.waiting_s * 1000 < LEAST_COMMIT_MS:
            raise RequestError(
                f"The input buffer holds {self._listener.waiting_s * 1000:.0f} ms of sound; a turn "
                f"has at least {LEAST_COMMIT_MS} ms.",
                code="input_audio_buffer_commit_empty",
            )
        self._somebody_is_there()
        self._add_turn(await self._sound(self._listener.commit()))

    async def _sound(self, samples: Pcm) -> Sound:
        make = partial(Sound.of, samples, self._listener.format.rate)
        return await off_loop(make, if_=len(samples) > _LONG_TURN)

    def _add_turn(self, sound: Sound) -> None:
        item = MessageItem(id=self._turn_id, speaker="user", content=[sound])
        self._turn_id = new_id("item")
        self._editor.add_turn(item, self.settings)

    def _answer_turn(self) -> None:
        """By itself."""
        if self.settings.type == "realtime":
            self._answer_or_wait({})

    def _answer_or_wait(self, asked: Json) -> None:
        """Answer as is asked, after what is being answered; where that cannot be, the client is
        told."""
        if self._answers.active is not None:
            self._waiting = asked if self._waiting is None else self._waiting
            return
        try:
            self._begin(self._response_settings(asked))
            self._is_own = True
        except OmniError as error:
            self.refuse(error)

    def _parse(self, written: Json, path: str) -> Item:
        return self._editor.parse(written, path, self._listener.format)

    # responses

    async def _respond(self, asked: Json) -> None:
        """Answer, as the client asks: now, or after what the server answers by itself if the client
        has said more since that began, which it may not have heard of yet."""
        settings = await off_loop(partial(self._response_settings, asked), if_=bool(asked))
        chosen = settings.input
        if chosen is None:
            if self._has_news and self._answers.active is not None and not settings.is_apart:
                self._waiting, self._has_news = asked, False
                return
            items = None
        else:
            where = self._listener.format
            items = await asyncio.to_thread(self._editor.chosen, chosen, where)
        self._begin(settings, items)
        self._was_prompted = False
        if not settings.is_apart:
            self._is_own = False

    def _response_settings(self, asked: Json) -> ResponseSettings:
        if self.settings.type == "transcription":
            raise RequestError("A transcription session answers nothing.", code="unsupported_event")
        changes = self._dialect.response(asked)
        return self._abilities.checked_response(for_response(self.settings, changes))

    def _begin(self, settings: ResponseSettings, items: list[Item] | None = None) -> None:
        """Answer these items, or the conversation as far as it fits."""
        if items is None:
            items = self._editor.whole(self.settings, may_fold=self._answers.active is None)
        may_fold = self.settings.truncation != "disabled"
        self._answers.begin(Asked(settings=settings, items=items, may_fold=may_fold))
        if not settings.is_apart:
            self._idle.stop()
            self._has_news = False

    def _answered(self, answer: Answer) -> None:
        """One response has ended."""
        spoke_until_s = answer.reply.played_until_s
        self._has_spoken |= spoke_until_s is not None
        if self._is_closed or not answer.is_in_conversation:
            return
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._answer_or_wait(waiting)
        elif self._idle_s is not None and not self._listener.speaks and not self._was_prompted:
            now_s = asyncio.get_running_loop().time()
            self._idle.start(max(now_s, spoke_until_s or now_s), self._idle_s)

    # silence

    @property
    def _idle_s(self) -> float | None:
        detection = self.settings.audio.input.turn_detection
        if detection is None or detection.idle_timeout_ms is None:
            return None
        return detection.idle_timeout_ms / 1000

    def _somebody_is_there(self) -> None:
        """A person, or a program for one, has done something: this silence is over."""
        self._idle.stop()
        self._was_prompted = False

    def _timed_out(self) -> None:
        """Nobody has said anything for a while: go on without, once for each silence."""
        self._was_prompted = True
        now_ms = self._listener.now_ms
        start_ms = now_ms - round(self._listener.waiting_s * 1000)
        self._put(
            {
                "type": "input_audio_buffer.timeout_triggered",
                "audio_start_ms": start_ms,
                "audio_end_ms": now_ms,
                "item_id": self._turn_id,
            }
        )
        if now_ms - start_ms >= LEAST_COMMIT_MS:
            silence = self._listener.commit()
            self._add_turn(Sound.of(silence, self._listener.format.rate))
        self._answer_turn()

    def _put(self, event: Json) -> None:
        self._shared.put(event)
