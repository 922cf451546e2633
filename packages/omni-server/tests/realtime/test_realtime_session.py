"""One session on a scripted pipeline: items, responses, turns, interruptions."""

from __future__ import annotations

import asyncio
import base64
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omni_core.errors import ContextLengthError, OverloadedError, StageDiedError
from omni_core.types import (
    Finished,
    MediaPart,
    TextDelta,
    TextPart,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from omni_server.rate import RateLimiter
from omni_server.realtime.conversation import MOST_ITEMS
from omni_server.realtime.folding import MOST_HELD_BYTES
from omni_server.realtime.items import MessageItem, Written

DONE = "response.done"
HELLO = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
FINISHED = Finished(finish_reason="stop", usage=Usage(prompt_tokens=3, text_tokens=2))
TOOL = {
    "type": "function", "name": "look", "description": "Look it up.",
    "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
}  # fmt: skip


def say(*texts: str) -> Any:
    return lambda request: [*(TextDelta(text=text) for text in texts), FINISHED]


class Gate:
    """A script that speaks for half a second, and waits to go on."""

    def __init__(self, kit: Any) -> None:
        self.kit, self.event = kit, asyncio.Event()

    def __call__(self, request: Any) -> list[Any]:
        sound = self.kit.sound(0, self.kit.RATE // 2)
        text = TextDelta(text="one two three four five six")
        return [text, sound, self.event, TextDelta(text=" seven"), FINISHED]


def turn(sounds: Any, seed: int = 0) -> Any:
    parts = (sounds.silence(0.5), sounds.speech(0.4, seed=seed), sounds.silence(0.7))
    return np.concatenate(parts).astype(np.int16)


async def test_text_is_answered_with_what_was_said_before(desk):
    await desk.update(instructions="Be brief.", output_modalities=["text"])
    await desk.write("Hi")
    await desk.ask()
    await desk.write("And now?")
    done = await desk.ask()
    assert done["status"] == "completed"
    assert desk.prompt() == [
        ("system", "Be brief."), ("user", "Hi"), ("assistant", "Héllo there"),
        ("user", "And now?"),
    ]  # fmt: skip


async def test_new_instructions_count_from_the_next_response(desk):
    await desk.update(instructions="One.", output_modalities=["text"])
    await desk.write()
    await desk.ask()
    await desk.update(instructions="Two.")
    await desk.ask()
    await desk.update(instructions="")
    await desk.ask()
    assert [desk.prompt(i)[0] for i in range(3)] == [
        ("system", "One."), ("system", "Two."), ("user", "Hi"),
    ]  # fmt: skip


async def test_a_response_may_have_settings_of_its_own(desk):
    await desk.update(instructions="Mine.")
    await desk.write()
    done = await desk.ask(
        instructions="Yours.", output_modalities=["text"], max_output_tokens=7,
        metadata={"topic": "test"}, temperature=0.5,
    )  # fmt: skip
    [request] = desk.requests
    assert request.params.modalities == ("text",)
    assert request.params.sampling.max_tokens == 7
    assert request.params.sampling.temperature == 0.5
    assert desk.prompt()[0] == ("system", "Yours.")
    assert done["metadata"] == {"topic": "test"}
    assert desk.session.settings.instructions == "Mine."


async def test_the_timeline_comes_where_it_is_asked_for(desk):
    await desk.write()
    assert "timeline" not in await desk.ask()
    done = await desk.ask(include_timeline=True)
    assert [span["stage"] for span in done["timeline"]] == ["thinker", "voice"]


async def test_a_response_outside_of_the_conversation_leaves_it_alone(desk):
    await desk.write("Hi")
    item_id = await desk.write("Something else")
    given = [{"type": "item_reference", "id": item_id}, {
        "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Sum up"}],
    }]  # fmt: skip
    done = await desk.ask(conversation="none", input=given, output_modalities=["text"])
    assert done["conversation_id"] is None
    assert desk.prompt() == [("user", "Something else"), ("user", "Sum up")]
    assert desk.kinds.count("conversation.item.added") == 2
    assert len(desk.shared.conversation.items) == 2


async def test_there_is_one_response_at_a_time(desk, kit):
    gate = desk.context.pipeline.script = Gate(kit)
    await desk.write()
    await desk.tell("response.create")
    error = await desk.refused("response.create")
    assert error["code"] == "conversation_already_has_active_response"
    gate.event.set()
    await desk.quiet()
    assert desk.said[-1]["response"]["status"] == "completed"


async def test_a_cancelled_response_ends_at_once_and_keeps_what_was_said(desk, kit):
    desk.context.pipeline.script = Gate(kit)
    await desk.update(output_modalities=["text"])
    await desk.write()
    await desk.tell("response.create")
    await desk.until("response.output_text.delta")
    await desk.tell("response.cancel")
    assert desk.kinds[-5:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "conversation.item.done", DONE,
    ]  # fmt: skip
    done = desk.said[-1]["response"]
    assert done["status"] == "cancelled"
    assert done["status_details"]["reason"] == "client_cancelled"
    assert done["output"][0]["status"] == "incomplete"
    assert done["usage"] is None
    assert desk.context.pipeline.running == 0
    desk.context.pipeline.script = say("ok")
    await desk.ask()
    assert desk.prompt()[-1] == ("assistant", "one two three four five six")


async def test_a_cancelled_response_tells_the_tokens_that_came(desk):
    two = TextDelta(text="one two", token_ids=(1, 2))
    desk.context.pipeline.script = lambda request: [two, asyncio.Event()]
    await desk.update(output_modalities=["text"])
    await desk.tell("response.create")
    await desk.until("response.output_text.delta")
    await desk.tell("response.cancel")
    assert desk.said[-1]["response"]["usage"] == {"output_token_details": {"text_tokens": 2}}
    assert desk.shared.record.usage == Usage(text_tokens=2)


async def test_a_late_cancel_is_harmless_and_an_unknown_one_is_not(desk):
    await desk.write()
    done = await desk.ask(output_modalities=["text"])
    n_said = len(desk.said)
    await desk.tell("response.cancel", response_id=done["id"])
    assert len(desk.said) == n_said
    assert (await desk.refused("response.cancel"))["code"] == "response_cancel_not_active"
    error = await desk.refused("response.cancel", response_id="resp_other")
    assert error["param"] == "response_id"


async def test_a_cancel_names_its_response(desk, kit):
    gate = desk.context.pipeline.script = Gate(kit)
    await desk.write()
    await desk.tell("response.create")
    first = (await desk.until("response.created"))["response"]["id"]
    await desk.tell("response.cancel", response_id=first)
    await desk.tell("response.create")
    await desk.tell("response.cancel", response_id=first)
    gate.event.set()
    await desk.quiet()
    assert [e["response"]["status"] for e in desk.all(DONE)] == ["cancelled", "completed"]


async def test_a_spoken_turn_is_found_and_answered(desk, sounds):
    await desk.append(turn(sounds))
    await desk.quiet()
    began, stopped = (
        desk.all("input_audio_buffer.speech_started")[0],
        desk.all("input_audio_buffer.speech_stopped")[0],
    )
    assert desk.kinds[1:11] == [
        "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed", "conversation.item.added", "conversation.item.done",
        "response.created", "response.output_item.added", "conversation.item.added",
        "response.content_part.added", "response.output_audio_transcript.delta",
    ]  # fmt: skip
    item_id = desk.all("input_audio_buffer.committed")[0]["item_id"]
    assert item_id == began["item_id"] == stopped["item_id"]
    [request] = desk.requests
    sent = turn(sounds)[began["audio_start_ms"] * 24 : stopped["audio_end_ms"] * 24]
    assert request.messages[0].content[0].data[44:] == sent.tobytes()


async def test_speech_interrupts_and_what_was_heard_stays(desk, kit, sounds):
    desk.context.pipeline.script = Gate(kit)
    await desk.append(turn(sounds))
    await desk.until("response.output_audio.delta")
    assert desk.context.pipeline.running == 1
    await desk.append(sounds.speech(0.3))
    assert desk.context.pipeline.running == 0
    done = desk.said[-1]["response"]
    assert done["status"] == "cancelled"
    assert done["status_details"]["reason"] == "turn_detected"
    assert desk.kinds.index(DONE) > desk.kinds.index("input_audio_buffer.speech_started")
    spoken = done["output"][0]["id"]
    await desk.tell("conversation.item.truncate", item_id=spoken, content_index=0, audio_end_ms=400)
    desk.context.pipeline.script = say("ok")
    await desk.append(sounds.silence(0.7))
    await desk.quiet()
    roles = [message.role for message in desk.requests[-1].messages]
    assert roles == ["user", "assistant", "user"]
    heard = desk.prompt()[1][1]
    assert heard
    assert "one two three four five six".startswith(heard)
    assert heard != "one two three four five six"


async def test_speech_may_be_let_to_interrupt_nothing(desk, kit, sounds):
    gate = desk.context.pipeline.script = Gate(kit)
    detection = {"type": "server_vad", "interrupt_response": False}
    await desk.update(audio={"input": {"turn_detection": detection}})
    for seed in range(3):
        await desk.append(turn(sounds, seed))
        await desk.until("response.output_audio.delta")
    assert desk.kinds.count("response.created") == 1
    gate.event.set()
    await asyncio.sleep(0)
    await desk.until(DONE)
    await desk.quiet()
    assert [e["response"]["status"] for e in desk.all(DONE)] == ["completed", "completed"]
    assert [m.role for m in desk.requests[-1].messages] == ["user", "assistant", "user", "user"]


async def test_a_turn_that_waits_is_answered_as_the_session_is_then(desk, kit, sounds):
    gate = desk.context.pipeline.script = Gate(kit)
    detection = {"type": "server_vad", "interrupt_response": False}
    await desk.update(audio={"input": {"turn_detection": detection}})
    for seed in range(2):
        await desk.append(turn(sounds, seed))
        await desk.until("response.output_audio.delta")
    await desk.update(instructions="Be kind.")
    gate.event.set()
    await desk.until(DONE)
    await desk.quiet()
    assert [desk.prompt(number)[0][0] for number in (0, 1)] == ["user", "system"]


async def test_turns_without_responses(desk, sounds):
    detection = {
        "type": "server_vad", "create_response": False, "interrupt_response": False,
    }  # fmt: skip
    await desk.update(audio={"input": {"turn_detection": detection}})
    await desk.append(turn(sounds))
    await desk.quiet()
    assert desk.kinds[-1] == "conversation.item.done"
    assert desk.requests == []


async def test_manual_turns_lose_nothing(desk, sounds):
    await desk.update(audio={"input": {"turn_detection": None}}, output_modalities=["text"])
    sent = sounds.speech(1.0)
    for start, stop in ((0, 5_000), (5_000, 12_345), (12_345, 24_000)):
        await desk.append(sent[start:stop])
        await desk.tell("input_audio_buffer.commit")
    await desk.ask()
    heard = [message.content[0].data[44:] for message in desk.requests[0].messages]
    assert b"".join(heard) == sent.tobytes()


async def test_a_commit_while_a_turn_is_answered(desk, kit, sounds):
    gate = desk.context.pipeline.script = Gate(kit)
    await desk.update(audio={"input": {"turn_detection": None}})
    await desk.append(sounds.speech(0.2))
    await desk.tell("input_audio_buffer.commit")
    await desk.tell("response.create")
    await desk.append(sounds.speech(0.3, seed=1))
    await desk.tell("input_audio_buffer.commit")
    gate.event.set()
    await desk.quiet()
    assert desk.said[-1]["response"]["status"] == "completed"
    await desk.ask()
    assert sorted(m.role for m in desk.requests[-1].messages) == ["assistant", "user", "user"]


async def test_too_little_sound_is_no_turn(desk, sounds):
    await desk.update(audio={"input": {"turn_detection": None}})
    assert (await desk.refused("input_audio_buffer.commit"))["code"] == (
        "input_audio_buffer_commit_empty"
    )
    await desk.append(sounds.speech(0.3))
    await desk.tell("input_audio_buffer.clear")
    assert desk.kinds[-1] == "input_audio_buffer.cleared"
    assert (await desk.refused("input_audio_buffer.commit"))["code"] == (
        "input_audio_buffer_commit_empty"
    )


async def test_a_function_is_called_answered_and_spoken_of(desk):
    await desk.update(tools=[TOOL], output_modalities=["text"])
    call = [
        ToolCallDelta(index=0, call_id="call_1", name="look"),
        ToolCallDelta(index=0, call_id="call_1", arguments='{"what":'),
        ToolCallDelta(index=0, call_id="call_1", arguments='"sky"}'),
        Finished(finish_reason="tool_calls", usage=Usage()),
    ]
    desk.context.pipeline.script = lambda request: call
    await desk.write("Look up")
    done = await desk.ask()
    assert desk.requests[0].tool_use.tools[0].name == "look"
    assert desk.kinds[4:] == [
        "response.created", "response.output_item.added", "conversation.item.added",
        *["response.function_call_arguments.delta"] * 2, "response.function_call_arguments.done",
        "response.output_item.done", "conversation.item.done", DONE,
    ]  # fmt: skip
    [made] = desk.all("response.function_call_arguments.done")
    assert (made["call_id"], made["name"]) == ("call_1", "look")
    assert made["arguments"] == '{"what":"sky"}'
    assert done["output"][0]["type"] == "function_call"
    desk.context.pipeline.script = say("Blue.")
    result = {"type": "function_call_output", "call_id": "call_1", "output": "blue"}
    await desk.tell("conversation.item.create", item=result)
    assert (await desk.ask())["status"] == "completed"
    _, assistant, tool = desk.requests[-1].messages
    assert assistant.tool_calls[0].arguments == {"what": "sky"}
    assert (tool.role, tool.tool_call_id, tool.content) == (
        "tool", "call_1", (TextPart(text="blue"),),
    )  # fmt: skip


async def test_items_go_where_they_are_put(desk):
    last = await desk.write("b")
    await desk.write("a", id="first")
    await desk.tell("conversation.item.delete", item_id="first")
    assert desk.kinds[-1] == "conversation.item.deleted"
    item = {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "a"}]}
    await desk.tell("conversation.item.create", item={**item, "id": "x"}, previous_item_id="root")
    assert desk.said[-1]["previous_item_id"] is None
    await desk.tell("conversation.item.create", item={**item, "id": "y"}, previous_item_id="x")
    assert desk.said[-1]["previous_item_id"] == "x"
    assert [one.id for one in desk.shared.conversation.items] == ["x", "y", last]
    for fields in ({"item": {**item, "id": "x"}}, {"item": item, "previous_item_id": "gone"}):
        error = await desk.refused("conversation.item.create", **fields)
        assert error["param"] in ("item.id", "previous_item_id")
    assert (await desk.refused("conversation.item.delete", item_id="gone"))["code"] == (
        "item_not_found"
    )


async def test_an_item_is_shown_with_its_sound(desk, sounds):
    samples = sounds.speech(0.2)
    content = [{"type": "input_audio", "audio": base64.b64encode(samples.tobytes()).decode()}]
    item = {"type": "message", "role": "user", "content": content, "id": "said"}
    await desk.tell("conversation.item.create", item=item)
    assert "audio" not in desk.said[-1]["item"]["content"][0]
    await desk.tell("conversation.item.retrieve", item_id="said")
    shown = desk.said[-1]["item"]["content"][0]
    assert base64.b64decode(shown["audio"]) == samples.tobytes()


async def test_images_reach_the_model(desk):
    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    content = [{"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": url}]
    item = {"type": "message", "role": "user", "content": content}
    await desk.tell("conversation.item.create", item=item)
    await desk.ask(output_modalities=["text"])
    image = MediaPart(kind="image", data=b"\x89PNG", param="item.content[1].image_url")
    assert desk.requests[0].messages[0].content == (TextPart(text="See"), image)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "message", "role": "user", "content": []}, "item.content"),
        ({"type": "message", "role": "robot", "content": [{"type": "text"}]}, "item.role"),
        ({"type": "message", "role": "user"}, "item.content"),
        ({"type": "message", "role": "user", "content": [{"type": "input_text"}]},
         "item.content[0].text"),
        ({"type": "message", "role": "user", "content": [{"type": "output_text", "text": "a"}]},
         "item.content[0].type"),
        ({"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "é"}]},
         "item.content[0].audio"),
        ({"type": "mcp_call"}, "item.type"),
        ({"role": "user"}, "item.type"),
        ({"type": "function_call", "name": "f", "arguments": "[1]"}, "item.arguments"),
        ({"type": "function_call_output", "output": "x"}, "item.call_id"),
    ],
)  # fmt: skip
async def test_wrong_items_are_refused_by_name(desk, item, param):
    assert (await desk.refused("conversation.item.create", item=item))["param"] == param
    assert desk.shared.conversation.items == []


LONG = "x" * (1024 * 1024 + 1)


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        ("session.update", {"session": {"instructions": LONG}}, "session.instructions"),
        ("session.update", {"session": {"audio": {"input": {"transcription": {"prompt": LONG}}}}},
         "session.audio.input.transcription.prompt"),
        ("session.update", {"session": {"tools": [{**TOOL, "description": LONG}]}},
         "session.tools"),
        ("response.create", {"response": {"instructions": LONG}}, "response.instructions"),
        ("response.create", {"response": {"audio": {"output": {"voice": LONG}}}},
         "response.audio.output.voice"),
        ("session.update", {"session": {"model": LONG}}, "session.model"),
        ("session.update", {"session": {"tool_choice": {"type": "function", "name": LONG}}},
         "session.tools"),
        ("conversation.item.create", {"item": {**HELLO, "content": [
            {"type": "input_text", "text": LONG[: len(LONG) // 2 + 1]}] * 2}}, "item"),
        ("conversation.item.create",
         {"item": {"type": "function_call_output", "call_id": "a", "output": LONG}}, "item"),
        ("response.create", {"response": {"input": [HELLO] * 2_001}}, "response.input"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
async def test_texts_have_a_limit_that_is_told(desk, kind, fields, param):
    error = await desk.refused(kind, **fields)
    assert error["param"] == param
    assert re.search(r"\d{3,}", error["message"])
    assert len(error["message"]) < 1_000


async def test_an_item_counts_as_often_as_it_is_named(desk, sounds):
    audio = base64.b64encode(bytes(10 * 1024 * 1024)).decode()
    content = [{"type": "input_audio", "audio": audio}]
    item = {"type": "message", "role": "user", "content": content, "id": "said"}
    await desk.tell("conversation.item.create", item=item)
    await desk.write("x" * 600_000, id="text")
    for name, most in (("said", 6), ("text", 1)):
        named = {"type": "item_reference", "id": name}
        error = await desk.refused("response.create", response={"input": [named] * (most + 1)})
        assert error["param"] == "response.input"
        done = await desk.ask(input=[named] * most, output_modalities=["text"])
        assert done["status"] == "completed"


async def test_only_spoken_replies_are_truncated(desk):
    user = await desk.write()
    fields = {"content_index": 0, "audio_end_ms": 10}
    assert (await desk.refused("conversation.item.truncate", item_id=user, **fields))["param"] == (
        "item_id"
    )
    done = await desk.ask()
    spoken = done["output"][0]["id"]
    too_far = {**fields, "item_id": spoken, "audio_end_ms": 10_000}
    assert (await desk.refused("conversation.item.truncate", **too_far))["param"] == "audio_end_ms"
    await desk.tell("conversation.item.truncate", item_id=spoken, content_index=0, audio_end_ms=0)
    assert desk.kinds[-1] == "conversation.item.truncated"
    await desk.tell("conversation.item.retrieve", item_id=spoken)
    assert desk.said[-1]["item"]["content"] == [{"type": "output_audio", "transcript": ""}]


@pytest.mark.parametrize(
    ("end_ms", "heard"), [(0, ""), (500, "one two"), (60_000, "one two three")]
)
async def test_a_restored_reply_is_truncated(desk, end_ms, heard):
    content = [{"type": "output_audio", "transcript": "one two three"}]
    item = {"type": "message", "role": "assistant", "content": content, "id": "said"}
    await desk.tell("conversation.item.create", item=item)
    await desk.tell(
        "conversation.item.truncate", item_id="said", content_index=0, audio_end_ms=end_ms
    )
    await desk.write()
    await desk.ask(output_modalities=["text"])
    assert desk.prompt()[:-1] == ([("assistant", heard)] if heard else [])


async def test_sound_after_a_call_is_of_the_message_before(desk, kit):
    gate = asyncio.Event()
    desk.context.pipeline.script = lambda request: [
        TextDelta(text="Let me look."), kit.sound(0, kit.RATE),
        ToolCallDelta(index=0, call_id="call_1", name="look", arguments="{}"),
        kit.sound(kit.RATE, kit.RATE), gate, FINISHED,
    ]  # fmt: skip
    await desk.update(tools=[TOOL])
    await desk.write()
    await desk.tell("response.create")
    await desk.until("response.function_call_arguments.delta")
    gate.set()
    await desk.quiet()
    message, call = desk.said[-1]["response"]["output"]
    assert message["content"][0]["transcript"] == "Let me look."
    assert call["arguments"] == "{}"
    assert {event["item_id"] for event in desk.all("response.output_audio.delta")} == {
        message["id"]
    }
    cut = {"item_id": message["id"], "content_index": 0}
    error = await desk.refused("conversation.item.truncate", audio_end_ms=2_100, **cut)
    assert "only 2000 ms" in error["message"]
    await desk.tell("conversation.item.truncate", audio_end_ms=1_000, **cut)
    assert desk.kinds[-1] == "conversation.item.truncated"


async def test_a_client_knows_better_what_was_heard(desk, kit):
    desk.context.pipeline.script = Gate(kit)
    await desk.write()
    await desk.tell("response.create")
    spoken = (await desk.until("response.output_audio.delta"))["item_id"]
    await desk.tell("conversation.item.truncate", item_id=spoken, content_index=0, audio_end_ms=250)
    await desk.tell("response.cancel")
    await desk.tell("conversation.item.retrieve", item_id=spoken)
    assert desk.said[-1]["item"]["content"][0]["transcript"] == "one"


async def test_how_a_response_fails(desk):
    for failure in (StageDiedError("stage gone"), OverloadedError("full"), ValueError("bug")):
        desk.context.pipeline.script = lambda request, why=failure: [TextDelta(text="a"), why]
        done = await desk.ask(output_modalities=["text"])
        assert done["status"] == "failed"
        assert done["status_details"]["error"]["type"] == "server_error"
    counted = desk.context.metrics.requests.collect()[0].samples
    found = {one.labels["status"]: one.value for one in counted if one.name.endswith("_total")}
    assert found == {"503": 2, "500": 1}
    desk.context.pipeline.script = say("fine")
    assert (await desk.ask(output_modalities=["text"]))["status"] == "completed"


async def test_a_reply_that_ends_for_its_length_is_incomplete(desk):
    finished = Finished(finish_reason="length", usage=Usage())
    desk.context.pipeline.script = lambda request: [TextDelta(text="a"), finished]
    done = await desk.ask(output_modalities=["text"])
    assert done["status"] == "incomplete"
    assert done["status_details"]["reason"] == "max_output_tokens"


async def test_a_conversation_that_is_too_long_loses_its_oldest_turns(desk):
    def script(request: Any) -> Any:
        if len(request.messages) > 4:
            return [ContextLengthError("too long")]
        return [TextDelta(text="ok"), FINISHED]

    desk.context.pipeline.script = script
    await desk.update(instructions="Stay.", output_modalities=["text"])
    for number in range(6):
        await desk.write(f"turn {number} " + "x" * 100)
    assert (await desk.ask())["status"] == "completed"
    prompt = desk.prompt()
    assert prompt[0] == ("system", "Stay.")
    assert prompt[-1][1].startswith("turn 5")
    await desk.update(truncation="disabled")
    for number in range(6):
        await desk.write(f"turn {number}")
    assert (await desk.ask())["status_details"]["error"]["code"] == "context_length_exceeded"


async def test_a_session_of_any_length_keeps_a_bounded_conversation(desk, sounds):
    def script(request: Any) -> Any:
        parts = [part for message in request.messages for part in message.content]
        n_bytes = sum(len(part.data) for part in parts if isinstance(part, MediaPart))
        usage = Usage(prompt_tokens=n_bytes // 500, text_tokens=2)
        return [TextDelta(text="ok"), Finished(finish_reason="stop", usage=usage)]

    desk.context.pipeline.script = script
    await desk.update(audio={"input": {"turn_detection": None}}, output_modalities=["text"])
    for _ in range(40):
        await desk.append(sounds.speech(1.0), step=24_000)
        await desk.tell("input_audio_buffer.commit")
        await desk.ask()
        assert len(desk.shared.conversation.items) <= 34
    assert len(desk.shared.conversation.items) > 20
    assert desk.prompt()[0][0] == "user"


async def test_turns_are_written_down(desk, sounds):
    heard = {"transcription": {"model": "whisper-1", "language": "en", "prompt": "names"}}
    await desk.update(audio={"input": {**heard, "turn_detection": None}})
    desk.context.pipeline.script = say("Good ", "morning.")
    await desk.append(sounds.speech(0.3))
    await desk.tell("input_audio_buffer.commit")
    done = await desk.until("conversation.item.input_audio_transcription.completed")
    assert done["transcript"] == "Good morning."
    assert done["item_id"] == desk.all("input_audio_buffer.committed")[0]["item_id"]
    assert done["usage"]["total_tokens"] == 5
    assert "response.created" not in desk.kinds
    assert desk.prompt() == [("user", "write down en names")]
    await desk.tell("conversation.item.retrieve", item_id=done["item_id"])
    assert desk.said[-1]["item"]["content"][0]["transcript"] == "Good morning."


async def test_how_likely_what_is_written_down_is(desk, sounds):
    pipeline = desk.context.pipeline
    pipeline.info = replace(pipeline.info, logprobs=True)
    await desk.update(include=["item.input_audio_transcription.logprobs"])
    tokens = [TokenLogprob(token_id=n, spelling=b"a", logprob=-float(n)) for n in range(3)]
    pipeline.script = lambda request: [
        TextDelta(text="Good ", logprobs=(tokens[0],)),
        TextDelta(text="", logprobs=(tokens[1],)),
        TextDelta(text="morning.", logprobs=(tokens[2],)),
        FINISHED,
    ]
    await manual_turn(desk, sounds)
    await desk.quiet()
    assert desk.requests[0].params.sampling.logprobs == 0
    name = "conversation.item.input_audio_transcription"
    told = [[one["logprob"] for one in e["logprobs"]] for e in desk.all(f"{name}.delta")]
    assert told == [[0.0], [-1.0, -2.0]]
    [done] = desk.all(f"{name}.completed")
    assert [one["logprob"] for one in done["logprobs"]] == [0.0, -1.0, -2.0]


async def test_a_turn_that_cannot_be_written_down(desk, sounds):
    await desk.update(audio={"input": {"transcription": {}, "turn_detection": None}})
    desk.context.pipeline.script = lambda request: [StageDiedError("stage gone")]
    await desk.append(sounds.speech(0.3))
    await desk.tell("input_audio_buffer.commit")
    failed = await desk.until("conversation.item.input_audio_transcription.failed")
    assert failed["error"]["code"] == "stage_died"


async def test_a_transcription_session_answers_nothing(desks, sounds):
    desk = desks(kind="transcription")
    desk.context.pipeline.script = say("Good morning.")
    assert desk.said[0]["session"]["type"] == "transcription"
    await desk.append(turn(sounds))
    await desk.until("conversation.item.input_audio_transcription.completed")
    assert (await desk.refused("response.create"))["code"] == "unsupported_event"
    assert not any(kind.startswith("response.") for kind in desk.kinds)


async def test_silence_has_a_limit(desk, sounds):
    detection = {"type": "server_vad", "idle_timeout_ms": 100}
    await desk.update(audio={"input": {"turn_detection": detection}})
    desk.context.pipeline.script = say("Are you there?")
    await desk.append(turn(sounds))
    await desk.quiet()
    triggered = await desk.until("input_audio_buffer.timeout_triggered")
    assert triggered["audio_end_ms"] == 1_600
    await desk.quiet()
    assert len(desk.all(DONE)) == 2


async def test_clients_have_a_rate(desks):
    desk = desks(limiter=RateLimiter(2))
    for remaining in (1, 0):
        await desk.ask(output_modalities=["text"])
        [limit] = desk.all("rate_limits.updated")[-1]["rate_limits"]
        assert (limit["limit"], limit["remaining"]) == (2, remaining)
    error = await desk.refused("response.create")
    assert error["code"] == "rate_limit_exceeded"
    assert error["type"] == "rate_limit_error"


async def test_a_paused_server_answers_nothing_new(desk):
    desk.context.door.pause()
    assert (await desk.refused("response.create"))["code"] == "paused"
    desk.context.door.open()
    await desk.ask(output_modalities=["text"])
    assert desk.context.door.inside == 0


async def test_a_refused_response_takes_nothing_of_the_rate(desks):
    desk = desks(limiter=RateLimiter(1))
    desk.context.door.pause()
    assert (await desk.refused("response.create"))["code"] == "paused"
    desk.context.door.open()
    assert (await desk.ask(output_modalities=["text"]))["status"] == "completed"


async def manual_turn(desk, sounds):
    """Commit a spoken turn that is to be written down."""
    await desk.update(audio={"input": {"transcription": {}, "turn_detection": None}})
    await desk.append(sounds.speech(0.3))
    await desk.tell("input_audio_buffer.commit")


async def test_writing_down_passes_the_door(desk, sounds):
    gate = asyncio.Event()
    desk.context.pipeline.script = lambda request: [gate, TextDelta(text="Hi"), FINISHED]
    await manual_turn(desk, sounds)
    assert desk.context.door.inside == 1
    desk.context.door.drain()
    await desk.append(sounds.speech(0.3))
    await desk.tell("input_audio_buffer.commit")
    assert desk.said[-1]["error"]["code"] == "draining"
    assert desk.kinds[-1] == "conversation.item.input_audio_transcription.failed"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(desk.session.quiet(), 0.01)
    gate.set()
    await desk.quiet()
    assert desk.kinds[-1] == "conversation.item.input_audio_transcription.completed"
    assert len(desk.requests) == 1
    assert desk.context.door.inside == 0


async def test_writing_down_is_counted(desks, sounds):
    desk = desks(limiter=RateLimiter(1))
    for ending in ("completed", "failed"):
        await manual_turn(desk, sounds)
        await desk.quiet()
        assert desk.kinds[-1] == f"conversation.item.input_audio_transcription.{ending}"
    assert desk.said[-1]["error"]["code"] == "rate_limit_exceeded"
    assert len(desk.requests) == 1


async def test_an_answer_comes_before_writing_down(desks, sounds):
    desk = desks(limiter=RateLimiter(1))
    await desk.update(audio={"input": {"transcription": {}}})
    await desk.append(turn(sounds))
    await desk.quiet()
    assert [e["response"]["status"] for e in desk.all(DONE)] == ["completed"]
    assert "conversation.item.input_audio_transcription.failed" in desk.kinds


async def test_what_waits_to_be_written_down_is_let_go(desk, sounds):
    desk.context.pipeline.script = lambda request: [asyncio.Event()]
    for _ in range(3):
        await manual_turn(desk, sounds)
    assert desk.context.door.inside == 3
    await desk.session.close()
    assert desk.context.door.inside == 0


@pytest.mark.parametrize("kind", ["response.created", "response.output_item.done", DONE])
async def test_whatever_fails_a_response_ends(desk, kind):
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    await desk.write()
    desk.breaks_at = kind
    await desk.tell("response.create", response={"output_modalities": ["text"]})
    await desk.quiet()
    desk.breaks_at = ""
    assert desk.context.door.inside == 0
    assert (DONE in desk.kinds) is (kind != DONE)
    desk.context.pipeline.script = say("fine")
    assert (await desk.ask(output_modalities=["text"]))["status"] == "completed"


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("nonsense", "invalid_json", None),
        ('{"type": "no.such"}', "invalid_value", "type"),
        ("{}", "missing_required_parameter", "type"),
        ("[]", "invalid_value", None),
        ('{"type": "response.cancel", "response_id": 7}', "invalid_value", "response_id"),
        ('{"type": "input_audio_buffer.append"}', "missing_required_parameter", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "a"}', "invalid_value", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "' + "A" * (21 << 20) + '"}',
         "payload_too_large", "audio"),
        ('{"type": "output_audio_buffer.clear"}', "unsupported_event", None),
        ('{"type": "response.create", "response": {"a": ' + "[" * 100_000, "invalid_value",
         "response"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
async def test_wrong_events_are_told_and_the_session_goes_on(desk, text, code, param):
    await desk.session.hear(text)
    error = desk.said[-1]["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    await desk.write()
    assert (await desk.ask(output_modalities=["text"]))["status"] == "completed"


async def test_errors_name_the_event_that_caused_them(desk):
    await desk.session.hear('{"type": "no.such", "event_id": "mine"}')
    assert desk.said[-1]["error"]["event_id"] == "mine"


async def test_a_closed_session_begins_nothing(desk, kit, sounds):
    detection = {"type": "server_vad", "idle_timeout_ms": 100}
    await desk.update(audio={"input": {"turn_detection": detection}})
    desk.context.pipeline.script = Gate(kit)
    await desk.append(turn(sounds))
    await desk.until("response.output_audio.delta")
    await desk.session.close()
    n_said = len(desk.said)
    await asyncio.sleep(0.15)
    assert len(desk.said) == n_said


async def test_more_sound_than_an_event_may_have_is_not_shown(desk, sounds):
    await desk.update(audio={"input": {"turn_detection": None}})
    await desk.append(sounds.speech(440.0), step=7_000_000)
    await desk.tell("input_audio_buffer.commit")
    item_id = desk.said[-1]["item"]["id"]
    error = await desk.refused("conversation.item.retrieve", item_id=item_id)
    assert error["code"] == "item_too_large"


async def test_the_input_buffer_has_an_end(desk, sounds):
    await desk.update(audio={"input": {"turn_detection": None}})
    for _ in range(2):
        await desk.append(sounds.speech(299.0), step=7_200_000)
    three_s = base64.b64encode(bytes(3 * 48_000)).decode()
    error = await desk.refused("input_audio_buffer.append", audio=three_s)
    assert error["code"] == "input_audio_buffer_full"
    wrong = "!" * len(three_s)  # which nobody reads any more
    assert (await desk.refused("input_audio_buffer.append", audio=wrong))["code"] == error["code"]
    await desk.append(sounds.speech(2.0), step=48_000)
    assert len(desk.all("error")) == 2
    await desk.tell("input_audio_buffer.clear")
    await desk.append(sounds.speech(0.2))
    assert desk.kinds[-1] == "input_audio_buffer.cleared"


async def test_closing_ends_what_runs(desk, kit):
    desk.context.pipeline.script = Gate(kit)
    await desk.tell("response.create")
    await desk.until("response.output_audio.delta")
    await desk.session.close()
    assert desk.context.pipeline.running == 0
    assert desk.context.door.inside == 0


async def test_turns_that_nobody_answers_take_the_place_of_the_oldest(desk, sounds):
    detection = {"type": "server_vad", "create_response": False, "prefix_padding_ms": 0}
    await desk.update(audio={"input": {"turn_detection": detection}}, truncation="disabled")
    conversation = desk.shared.conversation
    first = await desk.write("Be kind.", role="system")
    second = await desk.write()
    for _ in range(MOST_ITEMS - 2):
        conversation.add(MessageItem(speaker="user", content=[Written("Hi")]))
    assert (await desk.refused("conversation.item.create", item=HELLO))["code"] == "too_many_items"
    await desk.append(turn(sounds))
    assert len(conversation.items) == MOST_ITEMS
    assert conversation.items[-1].sound_bytes > 0
    assert conversation.has(first)
    assert not conversation.has(second)
    assert desk.kinds.count("error") == 1


async def test_text_after_a_turn_in_a_full_conversation(desk, sounds):
    detection = {"type": "server_vad", "create_response": False}
    await desk.update(audio={"input": {"turn_detection": detection}}, output_modalities=["text"])
    conversation = desk.shared.conversation
    for _ in range(MOST_ITEMS):
        conversation.add(MessageItem(speaker="user", content=[Written("Hi")]))
    await desk.append(turn(sounds))
    await desk.write("And this?")
    assert (await desk.ask())["status"] == "completed"
    assert desk.prompt()[-1] == ("user", "And this?")
    assert isinstance(desk.requests[-1].messages[-2].content[0], MediaPart)
    assert "error" not in desk.kinds


async def test_text_after_a_turn_that_is_being_answered(desk, kit, sounds):
    gate = desk.context.pipeline.script = Gate(kit)
    await desk.append(turn(sounds))
    await desk.until("response.output_audio.delta")
    error = await desk.refused("response.create")  # nothing is new
    assert error["code"] == "conversation_already_has_active_response"
    await desk.write("And this?")
    await desk.tell("response.create", response={"metadata": {"mine": "yes"}})
    assert desk.kinds.count("response.created") == 1
    error = await desk.refused("response.create")  # one waits already
    assert error["code"] == "conversation_already_has_active_response"
    gate.event.set()
    await desk.until(DONE)
    await desk.quiet()
    first, second = (event["response"] for event in desk.all(DONE))
    assert (first["metadata"], second["metadata"]) == (None, {"mine": "yes"})
    assert [m.role for m in desk.requests[-1].messages] == ["user", "assistant", "user"]


async def test_sound_that_nobody_answers_is_bounded(desk):
    await desk.update(audio={"input": {"turn_detection": None}}, truncation="disabled")
    audio = base64.b64encode(bytes(12 * 1024 * 1024)).decode()
    for _ in range(8):
        await desk.tell("input_audio_buffer.append", audio=audio)
        await desk.tell("input_audio_buffer.commit")
    kept = [item.sound_bytes for item in desk.shared.conversation.items]
    assert sum(kept) <= MOST_HELD_BYTES
    assert len(kept) >= 4
    assert desk.said[-1]["item"]["id"] == desk.shared.conversation.last_id
