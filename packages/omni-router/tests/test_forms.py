"""Forms: passed through byte for byte, and read no further than routing needs."""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import Any

import pytest
from aiohttp import web

from omni_router.proxy.bodies import LONG_BYTES, FieldFinder

BOUNDARY = b"bound-5f"
KIND = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
PATH = "/v1/audio/transcriptions"


def part(name: str, value: bytes, filename: str = "", kind: str = "") -> bytes:
    head = f'--{BOUNDARY.decode()}\r\nContent-Disposition: form-data; name="{name}"'
    head += f'; filename="{filename}"' if filename else ""
    head += f"\r\nContent-Type: {kind}" if kind else ""
    return head.encode() + b"\r\n\r\n" + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--" + BOUNDARY + b"--\r\n"


def found(body: bytes, field: str, size: int) -> str | None:
    finder = FieldFinder(BOUNDARY, field)
    for start in range(0, len(body), size):
        finder.feed(body[start : start + size])
    return finder.value


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_a_field_is_found_however_the_form_is_cut(size: int) -> None:
    body = form(part("file", b"\r\n--bound-5" * 99, "a.wav"), part("model", "mö".encode()))
    assert found(body, "model", size) == "mö"
    assert found(body, "name", size) is None


def test_a_file_of_the_same_name_as_a_header_does_not_fool_it() -> None:
    body = form(part("file", b'Content-Disposition: form-data; name="model"\r\n\r\nx', "model"))
    assert found(body, "model", 50) is None


def test_what_is_no_form_has_no_field() -> None:
    assert found(b"nonsense" * 100, "model", 10) is None


async def two(scripted: Any, routed: Any, model_object: Any, handler: Any = None) -> Any:
    one = await scripted(handler, models=[model_object("one")])
    other = await scripted(handler, models=[model_object("two")])
    return one, other, await routed(one, other)


async def test_the_bytes_are_the_clients(scripted: Any, routed: Any) -> None:
    backend = await scripted()
    one = await routed(backend)
    body = form(
        part("timestamp_granularities[]", b"word"),
        part("timestamp_granularities[]", b"segment"),
        part("file", os.urandom(3000), "Aufnahme-ü-录音.wav", "audio/x-odd"),
        part("model", b"m"),
    )
    async with one.client.post(one.url + PATH, data=body, headers=KIND) as reply:
        assert reply.status == 200
    [seen] = backend.seen
    assert seen.body == body
    assert seen.headers["Content-Type"] == KIND["Content-Type"]
    assert seen.headers["Content-Length"] == str(len(body))


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_form_goes_to_its_model_wherever_that_stands(
    scripted: Any, routed: Any, model_object: Any, is_first: bool
) -> None:
    one, other, router = await two(scripted, routed, model_object)
    parts = [part("file", os.urandom(1000), "a.wav"), part("model", b"two")]
    body = form(*(parts[::-1] if is_first else parts))
    async with router.client.post(router.url + PATH, data=body, headers=KIND) as reply:
        assert reply.status == 200
    assert [seen.body for seen in other.seen] == [body]
    assert not one.seen


async def test_an_unknown_model_of_a_form_is_not_found(
    scripted: Any, routed: Any, model_object: Any
) -> None:
    _, _, router = await two(scripted, routed, model_object)
    body = form(part("file", b"x" * 1000, "a.wav"), part("model", b"three"))
    async with router.client.post(router.url + PATH, data=body, headers=KIND) as reply:
        assert reply.status == 404
        assert (await reply.json())["error"]["code"] == "model_not_found"


async def test_25_mb_before_the_model_are_kept_in_a_file(
    scripted: Any, routed: Any, model_object: Any, monkeypatch: Any
) -> None:
    from omni_router.proxy import bodies

    made: list[Any] = []
    real = bodies.tempfile.SpooledTemporaryFile

    def spooled(**options: Any) -> Any:
        made.append(real(**options))
        return made[-1]

    monkeypatch.setattr(bodies.tempfile, "SpooledTemporaryFile", spooled)
    digests: list[str] = []

    async def take(request: web.BaseRequest) -> web.Response:
        digest = hashlib.sha256()
        async for piece in request.content.iter_any():
            digest.update(piece)
        digests.append(digest.hexdigest())
        return web.json_response({})

    _, _, router = await two(scripted, routed, model_object, take)
    body = form(part("file", os.urandom(25_000_000), "a.wav"), part("model", b"two"))
    async with router.client.post(router.url + PATH, data=body, headers=KIND) as reply:
        assert reply.status == 200
    assert digests == [hashlib.sha256(body).hexdigest()]
    assert made[0]._rolled, "a form this long is not held in memory"
    assert made[0].closed


async def test_a_form_is_sent_on_as_soon_as_its_model_is_known(
    scripted: Any, routed: Any, model_object: Any
) -> None:
    began = asyncio.Event()

    async def take(request: web.BaseRequest) -> web.Response:
        async for _ in request.content.iter_any():
            began.set()
        return web.json_response({})

    _, _, router = await two(scripted, routed, model_object, take)

    async def body() -> Any:
        yield part("model", b"two")
        yield part("file", b"x" * LONG_BYTES, "a.wav")[:-100]
        await asyncio.wait_for(began.wait(), 2)
        yield form(b"x" * 98 + b"\r\n")

    async with router.client.post(router.url + PATH, data=body(), headers=KIND) as reply:
        assert reply.status == 200


async def test_a_form_without_a_boundary_is_refused_where_it_must_be_read(
    scripted: Any, routed: Any, model_object: Any
) -> None:
    _, _, router = await two(scripted, routed, model_object)
    headers = {"Content-Type": "multipart/form-data"}
    async with router.client.post(router.url + PATH, data=b"x", headers=headers) as reply:
        assert reply.status == 400


async def test_a_kept_form_can_be_sent_to_another_worker_if_none_of_it_was(
    scripted: Any, routed: Any, model_object: Any
) -> None:
    gone = await scripted(models=[model_object("two")])
    one, other, _ = await two(scripted, routed, model_object)
    router = await routed(one, gone, other, policy="round_robin", probe_interval_s=60.0)
    await gone.stop()
    body = form(part("file", os.urandom(LONG_BYTES * 2), "a.wav"), part("model", b"two"))
    for _ in range(3):
        async with router.client.post(router.url + PATH, data=body, headers=KIND) as reply:
            assert reply.status == 200
    assert [seen.body for seen in other.seen] == [body] * 3


async def test_an_uploaded_voice_is_spoken_where_it_was_uploaded(
    scripted: Any, routed: Any, model_object: Any
) -> None:
    able = model_object("m", capabilities={"voice_cloning": True, "speech": True}, voices=["anna"])
    workers = [await scripted(models=[able]) for _ in range(4)]
    router = await routed(*workers)
    homes = set()
    for number in range(12):
        name = f"Voice {number}"
        body = form(part("audio_sample", b"RIFF", "a.wav"), part("name", name.encode()))
        url = f"{router.url}/v1/audio/voices"
        async with router.client.post(url, data=body, headers=KIND) as reply:
            home = (await reply.json())["worker"]
        homes.add(home)
        for spelled in (name, name.upper()):
            sent = {"model": "m", "voice": spelled, "input": "x"}
            async with router.client.post(f"{router.url}/v1/audio/speech", json=sent) as reply:
                assert (await reply.json())["worker"] == home
    assert len(homes) > 1
