"""/v1/audio/voices: the voices there are, those that are uploaded, and what is spoken with them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from omni_core.errors import ConfigError, ConflictError
from omni_core.media import wav_bytes
from omni_core.media.limits import MediaLimits
from omni_core.specs import VoiceCloning
from omni_core.types import MediaPart, VoiceSample
from omni_server.app import server_context
from omni_server.keys import KeyRing
from omni_server.openai import voices
from omni_server.schema import answers
from omni_server.settings import MIB, Settings
from omni_server.voices.directory import DirectoryStore
from omni_server.voices.store import MemoryStore, UploadedVoice, VoiceCard

PATH = "/v1/audio/voices"
CLONING = VoiceCloning(sample_rates=(24_000, 16_000), min_s=1, max_s=3, max_characters=20)
RATE = 24_000


def hum(seconds=1.5, loud=0.3):
    times = np.arange(round(seconds * RATE)) / RATE
    return wav_bytes((loud * np.sin(1000 * times)).astype(np.float32), RATE)


@pytest.fixture
def pipeline(pipeline):
    pipeline.info = replace(pipeline.info, clones_voices=CLONING)
    return pipeline


async def upload(server, name="Anna", recording=None, **fields):
    files = {"audio_sample": ("a.wav", hum() if recording is None else recording)}
    return await server.http.post(PATH, data={"name": name, **fields}, files=files)


def brought(server):
    """What the pipeline was asked to speak with last."""
    request = server.pipeline.requests[-1]
    return request.params.voice, request.voice_sample


def sample(param, recording=None, text=""):
    data = hum() if recording is None else recording
    return VoiceSample(audio=MediaPart(kind="audio", data=data, param=param), text=text)


async def test_without_cloning_the_voices_are_the_checkpoints(local):
    local.pipeline.info = replace(local.pipeline.info, clones_voices=None)
    listed = (await local.http.get(PATH)).json()
    assert listed == {
        "voices": [{"id": name, "name": name} for name in ("Ethan", "Chelsie")],
        "uploaded_voices": [],
        "default_voice": "Ethan",
    }
    for response in (await upload(local), await local.http.delete(f"{PATH}/Ethan")):
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "unsupported_operation"
        assert "cannot clone" in error["message"]
    local.pipeline.info = replace(local.pipeline.info, clones_voices=CLONING)
    local.pipeline.modalities = ("text",)
    silent = {"voices": [], "uploaded_voices": [], "default_voice": None}
    assert (await local.http.get(PATH)).json() == silent
    assert (await upload(local)).json()["error"]["code"] == "unsupported_operation"
    assert (await local.http.get(f"{PATH}/Ethan")).status_code == 404


async def test_a_voice_is_added_shown_and_deleted(local):
    said = {"ref_text": " Hello. ", "consent": "cons_1", "type": "audio_sample", "other": "ignored"}
    added = await upload(local, "Anna B.", **said)
    assert added.status_code == 200, added.text
    voice = msgspec.convert(added.json(), answers.VoiceObject)
    assert (voice.id, voice.name, voice.type) == ("Anna B.", "Anna B.", "audio_sample")
    assert (voice.ref_text, voice.consent) == ("Hello.", "cons_1")
    assert added.headers["x-request-id"].startswith("voice-")
    listed = (await local.http.get(PATH)).json()
    assert listed["voices"][-1] == {"id": "Anna B.", "name": "Anna B."}
    assert listed["uploaded_voices"] == [added.json()]
    assert (await local.http.get(f"{PATH}/anna%20b.")).json() == added.json()
    preset = msgspec.convert((await local.http.get(f"{PATH}/ETHAN")).json(), answers.VoiceObject)
    assert (preset.name, preset.type, preset.ref_text) == ("Ethan", "preset", None)
    gone = await local.http.delete(f"{PATH}/ANNA%20B.")
    msgspec.convert(gone.json(), answers.VoiceDeleted)
    assert (await local.http.get(PATH)).json()["uploaded_voices"] == []
    for method in ("GET", "DELETE"):
        response = await local.http.request(method, f"{PATH}/Anna%20B.")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "voice_not_found"
    kept = await local.http.delete(f"{PATH}/ethan")
    assert (kept.status_code, kept.json()["error"]["code"]) == (400, "unsupported_operation")


@pytest.mark.parametrize("asked", ["anna", {"id": "Anna"}])
async def test_its_name_is_a_voice_wherever_presets_are(local, kit, asked):
    await upload(local, ref_text="Hello.")
    reading = {"input": "Hi", "voice": asked, "response_format": "pcm"}
    assert (await local.http.post("/v1/audio/speech", json=reading)).status_code == 200
    assert brought(local) == (None, sample("voice", text="Hello."))
    spoken = {"modalities": ["text", "audio"], "audio": {"voice": asked}}
    assert (await local.chat(**spoken, n=2)).status_code == 200
    assert len(local.pipeline.requests) == 3
    for request in local.pipeline.requests[1:]:
        assert request.voice_sample == sample("audio.voice", text="Hello.")
    assert (await local.chat(audio={"voice": asked})).status_code == 200
    assert brought(local)[1] is None


async def test_presets_are_still_named(local):
    await upload(local)
    spoken = {"modalities": ["text", "audio"], "audio": {"voice": {"id": "chelsie"}}}
    assert (await local.chat(**spoken)).status_code == 200
    assert brought(local) == ("Chelsie", None)
    error = await local.refused(400, audio={"voice": "nobody"})
    assert error["param"] == "audio.voice"
    assert "Ethan, Chelsie; GET /v1/audio/voices" in error["message"]


REFUSED = {
    "short": ({"recording": hum(0.5)}, "audio_sample", "lasts 0.50 s"),
    "long": ({"recording": hum(3.5)}, "audio_sample", "limit of 3 s"),
    "silent": ({"recording": hum(2, loud=0)}, "audio_sample", "not silent"),
    "damaged": ({"recording": b"RIFF of nothing"}, "audio_sample", ""),
    "empty": ({"recording": b""}, "audio_sample", "empty"),
    "text": ({"ref_text": "a" * 21}, "ref_text", "at most 20"),
    "consent": ({"consent": "a" * 513}, "consent", "512"),
    "prompt": ({"type": "prompt"}, "type", "a recording"),
    "no name": ({"name": ""}, "name", "Missing"),
    "blank": ({"name": "  "}, "name", "cannot be a name"),
    "long name": ({"name": "a" * 65}, "name", "64"),
    "path": ({"name": "../anna"}, "name", "begins with"),
    "slash": ({"name": "a/b"}, "name", "has '/'"),
    "control": ({"name": "a\x00b"}, "name", "has '\\x00'"),
    "dots": ({"name": ".."}, "name", "begins with"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_no_voice_is_refused_at_once(local, kit, case):
    asked, param, words = REFUSED[case]
    error = kit.error_of(await upload(local, **asked), 400)
    assert error["param"] == param
    assert words in error["message"]
    assert (await local.http.get(PATH)).json()["uploaded_voices"] == []


async def test_a_form_without_a_recording_is_refused(local, kit):
    answer = await local.http.post(PATH, data={"name": "a"}, files={"other": ("a", b"a")})
    assert kit.error_of(answer, 400)["param"] == "audio_sample"
    answer = await local.http.post(PATH, json={"name": "a"})
    assert kit.error_of(answer, 400)["code"] == "invalid_content_type"


async def test_a_name_is_taken_however_it_is_written(local, kit):
    await upload(local, "Zoë")
    for name in ("zoë", "ZOE\u0308", "Ethan", "chelsie"):
        error = kit.error_of(await upload(local, name), 409)
        assert (error["param"], error["code"]) == ("name", "voice_exists")
    assert (await local.http.delete(f"{PATH}/zoe%CC%88")).status_code == 200
    assert (await upload(local, "安娜-2")).json()["id"] == "安娜-2"


async def test_voices_are_bounded(pipeline, kit, monkeypatch):
    live = kit.shortcut(pipeline, Settings(served_model_name=kit.MODEL, max_voices=1))
    async with live.http:
        assert (await upload(live)).status_code == 200
        monkeypatch.setattr(voices, "load_voice", None)  # nothing is decoded without room for it
        error = kit.error_of(await upload(live, "Bert"), 409)
        assert error["code"] == "too_many_voices"
        assert "--max-voices" in error["message"]
        large = bytes(10 * MIB + 1)
        assert kit.error_of(await upload(live, recording=large), 413)["param"] == "audio_sample"
        error = kit.error_of(await upload(live, recording=bytes(12 * MIB)), 413)
        assert "request body" in error["message"]


async def test_an_operator_may_let_nobody_add_voices(pipeline, kit):
    live = kit.shortcut(pipeline, Settings(served_model_name=kit.MODEL, max_voices=0))
    async with live.http:
        error = kit.error_of(await upload(live), 400)
        assert error["code"] == "unsupported_operation"
        assert "operator" in error["message"]


async def test_the_operators_limits_on_media_count_too(pipeline, kit):
    limits = MediaLimits(max_audio_seconds=1.2)
    live = kit.shortcut(pipeline, Settings(served_model_name=kit.MODEL, media=limits))
    async with live.http:
        assert "1.2 s" in kit.error_of(await upload(live), 400)["message"]


async def test_what_is_spoken_goes_on_when_its_voice_is_deleted(local, kit):
    gate, begun = asyncio.Event(), asyncio.Event()

    def script(request):
        begun.set()
        return [gate, *kit.default_script(request)]

    await upload(local)
    local.pipeline.script = script
    asked = local.http.post("/v1/audio/speech", json={"input": "Hi", "voice": "Anna"})
    speaking = asyncio.create_task(asked)
    await begun.wait()
    assert (await local.http.delete(f"{PATH}/Anna")).status_code == 200
    gate.set()
    assert (await speaking).status_code == 200
    error = kit.error_of(
        await local.http.post("/v1/audio/speech", json={"input": "Hi", "voice": "Anna"}), 400
    )
    assert error["param"] == "voice"
    assert "no voice 'Anna'" in error["message"]


async def test_a_voice_that_is_deleted_on_the_way_is_missed(local, kit, monkeypatch):
    await upload(local)
    monkeypatch.setattr(MemoryStore, "voice", lambda self, name: None)
    monkeypatch.setattr(MemoryStore, "card", lambda self, name: VoiceCard(name=name, created_at=1))
    answer = await local.http.post("/v1/audio/speech", json={"input": "Hi", "voice": "Anna"})
    assert "was deleted" in kit.error_of(answer, 400)["message"]


async def test_who_has_no_key_sees_and_changes_nothing_of_clients(pipeline, kit):
    settings = Settings(
        served_model_name=kit.MODEL,
        api_keys=KeyRing.of(["key"]),
        admin_keys=KeyRing.of(["admin"]),
    )
    live = kit.shortcut(pipeline, settings)
    async with live.http:
        assert (await upload(live)).status_code == 401
        for key in ("key", "admin"):
            live.http.headers["authorization"] = f"Bearer {key}"
            assert (await upload(live, key)).status_code == 200
        both = (await live.http.get(PATH)).json()
        assert [voice["id"] for voice in both["uploaded_voices"]] == ["admin", "key"]
        for wrong in ("", "Bearer other"):
            live.http.headers["authorization"] = wrong
            listed = (await live.http.get(PATH)).json()
            assert [voice["id"] for voice in listed["voices"]] == ["Ethan", "Chelsie"]
            assert listed["uploaded_voices"] == []
            assert (await live.http.get(f"{PATH}/key")).status_code == 401
            assert (await live.http.delete(f"{PATH}/key")).status_code == 401


# --- directories ----------------------------------------------------------------------------------


def kept(name="Anna", recording=b"sound"):
    return UploadedVoice(VoiceCard(name=name, created_at=7, text="Hi."), recording)


def test_a_directory_keeps_voices_for_whoever_opens_it(tmp_path):
    place = tmp_path / "new" / "voices"
    one, other = DirectoryStore(place, 3), DirectoryStore(place, 3)
    one.add(kept("Anna ß"))
    other.add(kept("Bert", b"\n\n"))
    for store in (one, other, DirectoryStore(place, 3)):
        assert [card.name for card in store.cards()] == ["Anna ß", "Bert"]
        assert store.voice("ANNA SS") == kept("Anna ß")
        assert store.voice("bert") == kept("Bert", b"\n\n")
        assert store.card("nobody") is store.voice("nobody") is None
    assert other.remove("anna ß")
    assert not one.remove("anna ß")
    assert one.card("anna ß") is None
    assert place.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in place.iterdir()] == [0o600, 0o600]


@pytest.mark.parametrize("make", [MemoryStore, DirectoryStore])
def test_names_and_numbers_are_checked_where_voices_are_kept(make, tmp_path):
    store = make(*([tmp_path] if make is DirectoryStore else []), 2)
    store.add(kept("Anna"))
    with pytest.raises(ConflictError, match="There is a voice 'Anna'"):
        store.add(kept("anna", b"other"))
    store.add(kept("Bert"))
    with pytest.raises(ConflictError, match="2 voices at most"):
        store.add(kept("Carl"))
    assert [card.name for card in store.cards()] == ["Anna", "Bert"]
    assert store.voice("anna") == kept("Anna")
    assert store.remove("ANNA")
    assert not store.remove("anna")
    store.add(kept("Carl"))


def test_memory_holds_only_so_many_bytes():
    store = MemoryStore(10, max_bytes=8)
    store.add(kept("Anna"))
    with pytest.raises(ConflictError, match="8 bytes"):
        store.add(kept("Bert"))
    store.add(kept("Bert", b"abc"))


def test_what_is_no_voice_in_a_directory_is_skipped(tmp_path, caplog):
    store = DirectoryStore(tmp_path, 10)
    for name in ("Anna", "Bert", "Carl", "Dora"):
        store.add(kept(name))
    anna, bert, carl, dora = (store._path(name) for name in ("Anna", "Bert", "Carl", "Dora"))
    anna.write_bytes(b'{"name": "\xff", "created_at": 1}\n')
    bert.write_bytes(b'{"name": 5}\n')
    carl.write_bytes(dora.read_bytes())
    (tmp_path / ".unfinished-x").write_bytes(b"half")
    (tmp_path / "README").write_bytes(b"of the operator")
    assert [card.name for card in store.cards()] == ["Dora"]
    assert store.voice("Anna") is store.card("carl") is None
    assert len(caplog.records) == 5
    store.add(kept("Emma"))
    assert not (tmp_path / ".unfinished-x").exists()
    assert (tmp_path / "README").exists()
    assert store.remove("Anna")  # so that a name can be had again
    store.add(kept("Anna"))


async def test_a_directory_that_fails_is_told_as_such(pipeline, kit, tmp_path):
    place = tmp_path / "voices"
    live = kit.shortcut(pipeline, Settings(served_model_name=kit.MODEL, voices_dir=place))
    async with live.http:
        await upload(live)
        (lock,) = place.glob(".lock")
        lock.unlink()
        lock.mkdir()
        failed = await upload(live, "Bert")
        assert failed.status_code == 500
        assert failed.json()["error"]["code"] == "voices_unavailable"
        assert str(place) not in failed.text
        assert [path.suffix for path in place.iterdir() if path.is_file()] == [".voice"]


async def test_uploads_survive_in_a_directory(pipeline, kit, tmp_path):
    settings = Settings(served_model_name=kit.MODEL, voices_dir=tmp_path)
    first, second = (kit.shortcut(pipeline, settings) for _ in range(2))
    async with first.http, second.http:
        await upload(first, ref_text="Hello.")
        spoken = await second.http.post("/v1/audio/speech", json={"input": "Hi", "voice": "anna"})
        assert spoken.status_code == 200
        assert brought(second) == (None, sample("voice", text="Hello."))
        assert (await second.http.delete(f"{PATH}/anna")).status_code == 200
        assert (await first.http.get(f"{PATH}/anna")).status_code == 404


def test_a_directory_that_cannot_be_is_refused_at_the_start(pipeline, kit, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(ConfigError, match="voices_dir"):
        server_context(pipeline, Settings(served_model_name=kit.MODEL, voices_dir=file))
