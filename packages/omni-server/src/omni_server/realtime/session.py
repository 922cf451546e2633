"""One session: what a client says, what becomes of it, and what the server does by itself.

Knows events, settings and turns. Knows no socket: text comes in, events go out through `put`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, assert_never

import msgspec

from omni_core.errors import OmniError, RequestError
from omni_server.errors import error_object, internal_error
from omni_server.realtime import events
from omni_server.realtime.abilities import Abilities
from omni_server.realtime.answer import Answer, Asked
from omni_server.realtime.answers import Answers
from omni_server.realtime.conversation import MOST_ITEMS, REPLY_ITEMS
from omni_server.realtime.dialect import Dialect
from omni_server.realtime.editor import Editor
from omni_server.realtime.events import ClientEvent, decode_event, event_id_of
from omni_server.realtime.formats import Pcm, base64_bytes, decode_audio
from omni_server.realtime.idle import IdleTimer
from omni_server.realtime.items import Item, Json, MessageItem, Sound, new_id
from omni_server.realtime.listener import Heard, Listener, TurnBegan, TurnEnded
from omni_server.realtime.scribe import Scribe
from omni_server.realtime.settings import InputTranscription, SessionType, for_response, updated
from omni_server.realtime.shared import Shared
from omni_server.realtime.together import Runner
from omni_server.realtime.vad import SpeechModel

LEAST_COMMIT_MS: Final = 100
MOST_TURN_S: Final = 600.0
_LONG_TEXT: Final = 256 * 1024
"""Longer events are decoded in a thread."""
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
        self._turn_waits = False
        """A turn has ended while another was being answered."""
        self._was_prompted = False
        """The last that was answered was silence."""
        self._has_spoken = self._is_closed = False

    def greet(self) -> None:
        """What a client waits for."""
        self._put({"type": "session.created", "session": self._session_object()})

    async def hear(self, text: str) -> None:
        """One event; what is wrong with it is told, and the session goes on."""
        event_id = None
        try:
            if len(text) > _LONG_TEXT:
                event = await asyncio.to_thread(decode_event, text)
            else:
                event = decode_event(text)
            event_id = event.event_id
            await self._handle(event)
        except OmniError as error:
            self.refuse(error, event_id or event_id_of(text))
        except Exception as error:  # the request edge: the session goes on
            log.exception("an event failed")
            self.refuse(internal_error(error), event_id)

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
            case events.SessionUpdate():
                self._update(self._dialect.settings(event.session))
            case events.AudioCommit():
                self._commit()
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
                self._editor.add(item, self._transcription, event.previous_item_id)
            case events.ItemRetrieve():
                self._editor.show(event.item_id)
            case events.ItemTruncate():
                self._editor.truncate(event)
            case events.ItemDelete():
                self._editor.delete(event.item_id)
            case events.ResponseCreate():
                self._create_response(event.response)
                self._was_prompted = False
            case events.ResponseCancel():
                await self._answers.cancel(event.response_id, "client_cancelled")
            case _:
                assert_never(event)

    # settings

    def _update(self, changes: Json) -> None:
        """All of the changes, or none."""
        before = self.settings
        settings = self._abilities.checked_session(updated(before, changes))
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
        if len(audio) > _LONG_TEXT:
            data = await asyncio.to_thread(decode_audio, audio, "audio")
        else:
            data = decode_audio(audio, "audio")
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
                    self._turn_waits = False
                    await self._answers.interrupt()
            case TurnEnded(end_ms=end_ms, samples=samples):
                self._put(
                    {
                        "type": "input_audio_buffer.speech_stopped",
                        "audio_end_ms": end_ms,
                        "item_id": self._turn_id,
                    }
                )
                self._add_turn(samples)
                if detection is not None and detection.create_response:
                    self._answer_turn()

    def _commit(self) -> None:
        if self._listener.waiting_s * 1000 < LEAST_COMMIT_MS:
            raise RequestError(
                f"The input buffer holds {self._listener.waiting_s * 1000:.0f} ms of sound; a turn "
                f"has at least {LEAST_COMMIT_MS} ms.",
                code="input_audio_buffer_commit_empty",
            )
        self._somebody_is_there()
        self._add_turn(self._listener.commit())

    def _add_turn(self, samples: Pcm) -> None:
        sound = Sound.of(samples, self._listener.format.rate)
        item = MessageItem(id=self._turn_id, speaker="user", content=[sound])
        self._turn_id = new_id("item")
        self._editor.add_turn(item, self._transcription)

    @property
    def _transcription(self) -> InputTranscription | None:
        return self.settings.audio.input.transcription

    def _answer_turn(self) -> None:
        """By itself; where that cannot be, the client is told."""
        if self.settings.type == "transcription":
            return
        if self._answers.active is not None:
            self._turn_waits = True
            return
        try:
            self._create_response(None)
        except OmniError as error:
            self.refuse(error)

    def _parse(self, written: Json, path: str) -> Item:
        return self._editor.parse(written, path, self._listener.format)

    # responses

    def _create_response(self, asked: Json | None) -> None:
        if self.settings.type == "transcription":
            raise RequestError("A transcription session answers nothing.", code="unsupported_event")
        changes = self._dialect.response(asked or {})
        settings = self._abilities.checked_response(for_response(self.settings, changes))
        answer = self._answers.begin(
            Asked(
                settings=settings,
                items=self._items_for(settings.input),
                may_fold=self.settings.truncation != "disabled",
            )
        )
        if answer.is_in_conversation:
            self._idle.stop()

    def _items_for(self, written: tuple[Json, ...] | None) -> list[Item]:
        """Those that are to be answered: the conversation as far as it fits, or others."""
        conversation = self._shared.conversation
        if written is None:
            if self._answers.active is None:
                self._editor.fold(MOST_ITEMS - REPLY_ITEMS)
                conversation.keep(self._shared.folding.kept(conversation.items, self.settings))
            return conversation.items
        if len(written) > MOST_ITEMS:
            raise RequestError(
                f"'response.input' has over {MOST_ITEMS} items.", param="response.input"
            )
        return [
            conversation.get(str(one.get("id")))
            if one.get("type") == "item_reference"
            else self._parse(one, f"response.input[{index}]")
            for index, one in enumerate(written)
        ]

    def _answered(self, answer: Answer) -> None:
        """One response has ended."""
        spoke_until_s = answer.reply.played_until_s
        self._has_spoken |= spoke_until_s is not None
        if self._is_closed or not answer.is_in_conversation:
            return
        if self._turn_waits:
            self._turn_waits = False
            self._answer_turn()
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
            self._add_turn(self._listener.commit())
        self._answer_turn()

    def _put(self, event: Json) -> None:
        self._shared.put(event)
