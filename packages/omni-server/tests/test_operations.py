"""What stands before the routes: keys, rates, other origins, pauses, ids and the access log."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from omni_core.errors import ConfigError, ConflictError, NotReadyError, StageError
from omni_core.media import wav_bytes
from omni_core.pipeline import Health
from omni_core.specs import Transcription
from omni_server.access import access_log, line_of
from omni_server.app import EXPOSED_HEADERS, create_app, guarded, server_context
from omni_server.cli import security
from omni_server.cli.configuration import SERVER_DEFAULTS, CommandLine, read
from omni_server.cli.serve import settings_of
from omni_server.door import Door, DoorState
from omni_server.health import readiness_of
from omni_server.keys import KeyRing, read_key_file
from omni_server.rate import MOST_CLIENTS, RateLimiter
from omni_server.record import RequestRecord
from omni_server.settings import Settings
from omni_server.version import checked_out

KEYS = KeyRing.of(["user-key", "other-key"])
ADMIN = KeyRing.of(["root-key"])
ORIGIN = "https://app.example.com"


def bearer(key):
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def shortcut(kit):
    """Builds applications without sockets, with settings."""

    def build(on_access=None, **settings):
        said = Settings(served_model_name=kit.MODEL, **settings)
        more = () if on_access is None else (on_access,)
        return kit.shortcut(kit.FakePipeline(), said, *more)

    return build


def checked_error(response, status, code):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert response.headers["x-request-id"]
    return error


# -- keys


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_api_key"),
        ({"authorization": "Bearer"}, "missing_api_key"),
        ({"authorization": "Bearer  "}, "missing_api_key"),
        (bearer("user-ke"), "invalid_api_key"),
        (bearer("user-key2"), "invalid_api_key"),
        (bearer("USER-KEY"), "invalid_api_key"),
        ({"authorization": "Basic user-key"}, "invalid_api_key"),
        ({"authorization": "user-key x"}, "invalid_api_key"),
        ({"authorization": b"Bearer \xff\xfe"}, "invalid_api_key"),
        ({"x-api-key": "nobody"}, "invalid_api_key"),
        ({**bearer("nobody"), "x-api-key": "user-key"}, "invalid_api_key"),
    ],
)
async def test_without_a_good_key_only_probes_and_voices_are_answered(shortcut, kit, headers, code):
    live = shortcut(api_keys=KEYS)
    for method, path in (
        *(("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/version")),
        *(("GET", "/openapi.json"), ("GET", "/nowhere"), ("POST", "/v1/requests/a/cancel")),
        ("POST", "/v1/audio/voices"),
    ):
        response = await live.http.request(method, path, json=kit.hello(), headers=headers)
        checked_error(response, 401, code)
        challenge = response.headers["www-authenticate"]
        assert challenge.startswith('Bearer realm="omni"')
        assert ("invalid_token" in challenge) == (code == "invalid_api_key")
        assert "user-k" not in response.text.lower()
    assert not live.pipeline.requests
    for path in ("/live", "/health", "/ready", "/metrics", "/v1/audio/voices"):
        assert (await live.http.get(path, headers=headers)).status_code == 200
    metrics = (await live.http.get("/metrics")).text
    assert f'omni_requests_refused_total{{reason="{code}"}} 7.0' in metrics


@pytest.mark.parametrize(
    "headers",
    [
        bearer("user-key"),
        bearer("other-key"),
        {"authorization": "bearer   user-key"},
        {"x-api-key": "user-key"},
        bearer("root-key"),
    ],
)
async def test_a_good_key_is_let_in_however_it_is_sent(shortcut, kit, headers):
    live = shortcut(api_keys=KEYS, admin_keys=ADMIN)
    response = await live.http.post("/v1/chat/completions", json=kit.hello(), headers=headers)
    assert response.status_code == 200
    [request] = live.pipeline.requests
    assert "key" not in request.client


async def test_one_key_is_one_client_in_either_header(local, kit):
    for headers in (bearer("k"), {"x-api-key": "k"}):
        await local.http.post("/v1/chat/completions", json=kit.hello(), headers=headers)
    first, second = local.pipeline.requests
    assert first.client == second.client


async def test_metrics_need_a_key_where_they_are_not_open(shortcut):
    live = shortcut(api_keys=KEYS, metrics_are_open=False)
    checked_error(await live.http.get("/metrics"), 401, "missing_api_key")
    assert (await live.http.get("/metrics", headers=bearer("user-key"))).status_code == 200


async def test_a_websocket_without_a_key_is_refused_before_it_opens(kit, pipeline):
    app = create_app(pipeline, Settings(served_model_name=kit.MODEL, api_keys=KEYS))
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    for path in ("/v1/realtime", "/v1/audio/voices"):
        await app({"type": "websocket", "path": path, "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}] * 2


def test_keys_come_from_files_the_environment_and_the_command_line(tmp_path, monkeypatch, caplog):
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst\n\n  second  \n")
    file.chmod(0o640)
    monkeypatch.setenv("OMNI_API_KEYS", "third, fourth,")
    monkeypatch.setenv("OMNI_ADMIN_KEY", "root")
    typed = CommandLine(model_path=str(tmp_path), server_flags={"api_key_file": str(file)})
    settings = settings_of(read(typed), ["fifth"])
    assert [settings.api_keys.has(key) for key in ("first", "second", "third", "fourth")] == [
        True
    ] * 4
    assert settings.api_keys.has("fifth")
    assert not settings.api_keys.has("# ours")
    assert not settings.api_keys.has("")
    assert settings.admin_keys.has("root")
    assert not settings.admin_keys.has("first")
    assert not {"OMNI_API_KEYS", "OMNI_ADMIN_KEY"} & set(os.environ)
    assert not re.search("first|third|fifth|root", repr(settings))
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize("said", ["", " ", ",", " , ,"])
@pytest.mark.parametrize("name", [security.API_KEYS, security.ADMIN_KEY])
def test_a_variable_without_a_key_does_not_open_the_server(name, said, monkeypatch, tmp_path):
    monkeypatch.setenv(name, said)
    with pytest.raises(ConfigError, match=f"{name} is set and has no key; unset it"):
        settings_of(read(CommandLine(model_path=str(tmp_path))))


def test_an_empty_key_on_the_command_line_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--api-key: key 1 is empty"):
        settings_of(read(CommandLine(model_path=str(tmp_path))), [""])


@pytest.mark.parametrize("text", ["", "# none\n", "two words\n", "schlüssel\n", "tab\tbed\n"])
def test_a_key_file_without_usable_keys_is_refused(tmp_path, text):
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"server\.api_key_file: .*keys"):
        read_key_file(file, "api_key_file")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key_file(tmp_path / "nowhere", "api_key_file")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *(("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)),
        *(("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("omni.example.com", False)),
    ],
)
def test_being_reachable_without_keys_is_said_aloud(host, loopback, caplog):
    typed = CommandLine(server_flags={"host": host})
    server = read(typed).server
    assert security.metrics_are_open(server) == loopback
    security.warn_if_open(server, KEYS)
    assert not caplog.text
    security.warn_if_open(server, KeyRing())
    assert ("no API key is set" in caplog.text) == (not loopback)


# -- the admin's routes


async def test_without_an_admin_key_there_are_no_admin_routes(shortcut):
    live = shortcut(api_keys=KEYS)
    for headers in ({}, bearer("user-key"), bearer("root-key")):
        checked_error(await live.http.get("/admin/info", headers=headers), 404, "unknown_url")


async def test_admin_routes_are_the_admins(shortcut):
    live = shortcut(api_keys=KEYS, admin_keys=ADMIN)
    for path in ("/admin/pause", "/admin/continue", "/admin/nowhere"):
        checked_error(await live.http.post(path), 401, "missing_api_key")
        checked_error(await live.http.post(path, headers=bearer("no")), 401, "invalid_api_key")
        user = await live.http.post(path, headers=bearer("user-key"))
        checked_error(user, 403, "permission_denied")
    assert (await live.http.get("/ready")).status_code == 200


async def test_a_paused_server_finishes_what_runs_and_takes_nothing_new(shortcut, kit):
    live = shortcut(admin_keys=ADMIN)
    live.http.headers.update(bearer("root-key"))
    paused = (await live.http.post("/admin/pause")).json()
    assert paused == {"state": "paused", "inside": 0, "running": 0, "queued": 0}
    response = await live.http.post("/v1/chat/completions", json=kit.hello())
    checked_error(response, 503, "paused")
    assert response.headers["retry-after"] == "5"
    ready = await live.http.get("/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "paused")
    for path in ("/health", "/live", "/v1/models"):
        assert (await live.http.get(path)).status_code == 200
    cancel = await live.http.post("/v1/requests/some/cancel")
    checked_error(cancel, 404, "request_not_found")
    assert (await live.http.post("/admin/continue")).json()["state"] == "open"
    assert (await live.chat()).status_code == 200
    assert (await live.http.get("/ready")).json() == {"status": "ready", "waiting_for": []}


async def test_the_admin_sees_what_runs_under_which_limits(shortcut):
    live = shortcut(admin_keys=ADMIN, rate_limit=7)
    info = (await live.http.get("/admin/info", headers=bearer("root-key"))).json()
    assert info["stages"]["thinker"]["devices"] == ["cuda:1"]
    assert info["health"]["stages"]["voice"]["pid"] == 11
    assert info["limits"]["requests_per_minute"] == 7
    assert info["limits"]["max_in_flight"] == 3
    assert info["limits"]["max_realtime_sessions"] == 128
    assert info["limits"]["media"]["max_redirects"] == 5
    assert "root-key" not in json.dumps(info)


async def test_the_log_level_is_set_here_and_in_the_stages(shortcut, kit):
    live = shortcut(admin_keys=ADMIN)
    live.http.headers.update(bearer("root-key"))
    before = logging.getLogger().level
    try:
        set_to = await live.http.put("/admin/log-level", json={"level": "DEBUG"})
        assert set_to.json() == (await live.http.get("/admin/log-level")).json()
        assert set_to.json() == {"level": "DEBUG"}
        assert live.pipeline.log_levels == ["DEBUG"]
        for body in ({"level": "LOUD"}, {"level": None}, {}, {"level": "INFO", "x": 1}, []):
            response = await live.http.put("/admin/log-level", json=body)
            assert response.status_code == 400
        big = await live.http.put("/admin/log-level", content=b" " * 5000)
        checked_error(big, 413, "payload_too_large")
    finally:
        logging.getLogger().setLevel(before)


async def test_a_profile_is_of_a_stage_there_is_and_takes_a_minute_at_most(shortcut):
    live = shortcut(admin_keys=ADMIN)
    live.http.headers.update(bearer("root-key"))
    for body, param in (
        ({"stage": "nobody"}, "stage"),
        ({"stage": "voice", "seconds": 61}, "seconds"),
        ({"stage": "voice", "seconds": 0}, "seconds"),
        ({"seconds": 1}, "stage"),
    ):
        response = await live.http.post("/admin/profile", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param


@pytest.fixture
def places(tmp_path):
    """The served model with a newer one in it, a directory for others, and one for nobody."""
    for name in ("model/step-1", "more/step-2", "secret", "more-secret"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "more" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "more" / "link").symlink_to("step-2")
    (tmp_path / "more" / "circle").symlink_to("circle")
    (tmp_path / "more" / "file").touch()
    return tmp_path


@pytest.fixture
def operator(shortcut, places):
    live = shortcut(admin_keys=ADMIN, weights_dirs=(places / "more", places / "gone"))
    live.http.headers.update(bearer("root-key"))
    live.pipeline.model_path = str(places / "model")
    return live


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("step-1", "model/step-1"),
        ("step-2", "more/step-2"),
        ("{}/more/step-2", "more/step-2"),
        ("{}/more/../model/step-1", "model/step-1"),
        ("link", "more/step-2"),
        (".", "model"),
    ],
)
async def test_new_weights_are_loaded_from_where_an_operator_may(operator, places, path, found):
    body = {"path": path.format(places), "running": "abort", "wait_s": 2, "revision": "r-7"}
    response = await operator.http.post("/admin/weights", json=body)
    assert response.status_code == 200, response.text
    assert {"checkpoint": "parrot", "revision": "a" * 40}.items() <= response.json().items()
    how = {"running": "abort", "wait_s": 2.0, "revision": "r-7"}
    assert operator.pipeline.updates == [(str(places / found), how)]


@pytest.mark.parametrize(
    "path",
    [
        *("/etc", "{}/secret", "{}/more-secret", "../secret", "out", "step-2/../../secret"),
        *("{}/none", "circle", "file", "step-3", "step\x002", "a" * 4000, "~", "//"),
        "/proc/self/cwd",
    ],
)
async def test_any_other_place_is_refused_alike(operator, places, path):
    response = await operator.http.post("/admin/weights", json={"path": path.format(places)})
    error = checked_error(response, 400, "checkpoint_not_found")
    assert error["param"] == "path"
    assert str(places) not in error["message"]
    assert operator.pipeline.updates == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("path", value) for value in ("", "a" * 4097, None, 7)),
        *(("wait_s", value) for value in (-1, 3601, "1")),
        *(("revision", value) for value in ("", "a b", "a" * 129)),
        *(("running", "kill"), ("force", True)),
    ],
)
async def test_a_wrong_field_of_an_update_is_named(operator, field, value):
    body = {"path": "step-1", field: value}
    response = await operator.http.post("/admin/weights", json=body)
    assert response.status_code == 400
    assert field in response.json()["error"]["message"]
    assert operator.pipeline.updates == []


async def test_what_became_of_updates_is_counted(operator):
    for error, status in (
        (None, 200),
        (ConflictError("not now", code="requests_running"), 409),
        (StageError("it broke", code="weights_not_loaded"), 500),
        (ValueError("nobody has thought of this"), 500),
    ):
        operator.pipeline.update_fails = error
        response = await operator.http.post("/admin/weights", json={"path": "step-1"})
        assert response.status_code == status
    told = (await operator.http.get("/metrics")).text
    for outcome, times in (("loaded", 1), ("refused", 1), ("failed", 2)):
        assert f'omni_weight_updates_total{{outcome="{outcome}"}} {times}.0' in told


async def test_the_profiler_is_started_and_stopped_where_the_operator_lets_it_write(
    shortcut, tmp_path
):
    live = shortcut(admin_keys=ADMIN, profile_dir=tmp_path)
    live.http.headers.update(bearer("root-key"))
    checked_error(await live.http.post("/admin/profiler/stop"), 409, "conflict")
    body = {"stages": ["thinker"], "seconds": 60}
    started = await live.http.post("/admin/profiler/start", json=body)
    assert started.json() == {
        "seconds": 60.0,
        "processes": {
            "talker": {"stages": ["thinker"], "file": "t.json.gz", "threads": {}, "reason": None},
            "voice": {"stages": ["voice"], "file": None, "threads": {}, "reason": "no torch"},
        },
    }
    assert live.pipeline.traces == [(str(tmp_path), 60.0, ("thinker",))]
    stopped = (await live.http.post("/admin/profiler/stop")).json()["processes"]
    assert stopped["talker"]["threads"] == {"stage-thinker": 7}
    assert (await live.http.post("/admin/profiler/start", json={})).status_code == 200
    assert live.pipeline.traces[1] == (str(tmp_path), 5.0, ("thinker", "voice"))
    for wrong, param in (
        ({"stages": ["nobody"]}, "stages"),
        ({"stages": "voice"}, "stages"),
        ({"stages": ["voice"] * 65}, "stages"),
        ({"seconds": 61}, "seconds"),
        ({"seconds": 0}, "seconds"),
    ):
        response = await live.http.post("/admin/profiler/start", json=wrong)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_without_a_directory_there_is_no_profiler(shortcut):
    live = shortcut(admin_keys=ADMIN)
    live.http.headers.update(bearer("root-key"))
    response = await live.http.post("/admin/profiler/start", json={})
    assert "--profile-dir" in checked_error(response, 400, "unsupported_profiler")["message"]
    assert live.pipeline.traces == []


# -- rates


def test_a_bucket_fills_at_its_rate_and_never_over():
    now = [0.0]
    limiter = RateLimiter(60, clock=lambda: now[0])
    assert [limiter.take("a").wait_s for _ in range(60)] == [0.0] * 60
    refused = limiter.take("a")
    assert (refused.wait_s, refused.remaining, refused.reset_s) == (1.0, 0, 60.0)
    assert limiter.take("b").remaining == 59
    now[0] = 0.75
    assert limiter.take("a").wait_s == 0.25
    now[0] = 1.0
    assert limiter.take("a").wait_s == 0
    now[0] = 1000.0
    assert limiter.take("a").remaining == 59


def test_clients_that_are_long_gone_are_forgotten():
    limiter = RateLimiter(1)
    for number in range(MOST_CLIENTS + 10):
        limiter.take(str(number))
    assert len(limiter._buckets) == MOST_CLIENTS
    assert limiter.take("0").wait_s == 0
    assert limiter.take(str(MOST_CLIENTS + 9)).wait_s > 0


async def test_who_sends_too_much_is_told_when_to_come_back(shortcut, kit):
    live = shortcut(rate_limit=2)
    first, second, third = [await live.chat() for _ in range(3)]
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert re.fullmatch(r"\d+ms", first.headers["x-ratelimit-reset-requests"])
    error = checked_error(third, 429, "rate_limit_exceeded")
    assert error["type"] == "rate_limit_error"
    assert 1 <= int(third.headers["retry-after"]) <= 30
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(live.pipeline.requests) == 2
    assert (await live.http.get("/v1/models")).status_code == 200
    assert (await live.http.post("/v1/requests/a/cancel")).status_code == 404
    text = (await live.http.get("/metrics")).text
    assert 'omni_requests_refused_total{reason="request_rate"} 1.0' in text


async def test_a_name_nobody_checks_is_no_new_client(shortcut, kit):
    live = shortcut(rate_limit=1)
    statuses = [
        (
            await live.http.post("/v1/chat/completions", json=kit.hello(), headers=headers)
        ).status_code
        for headers in (bearer("a"), bearer("b"), {"x-api-key": "c"})
    ]
    assert statuses == [200, 429, 429]
    live = shortcut(rate_limit=1, api_keys=KEYS)
    statuses = [
        (
            await live.http.post("/v1/chat/completions", json=kit.hello(), headers=headers)
        ).status_code
        for headers in (bearer("user-key"), {"x-api-key": "user-key"}, bearer("other-key"))
    ]
    assert statuses == [200, 429, 200]


async def test_a_streamed_reply_has_the_headers_too(shortcut):
    response = await shortcut(rate_limit=5).chat(stream=True)
    assert response.headers["x-ratelimit-remaining-requests"] == "4"
    assert response.text.endswith("data: [DONE]\n\n")


async def test_neighbours_in_an_ipv6_site_share_a_rate(kit):
    app = create_app(kit.FakePipeline(), Settings(served_model_name=kit.MODEL, rate_limit=1))

    async def status(host):
        transport = httpx.ASGITransport(app, client=(host, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://omni") as http:
            return (await http.post("/v1/chat/completions", json=kit.hello())).status_code

    addresses = ("2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1", "fe80::1%eth0", "10.0.0.1")
    assert [await status(host) for host in addresses] == [200, 429, 200, 200, 200]
    assert await status("::ffff:10.0.0.1") == 429, "the same address in IPv6"
    made_up = ("x" * 100_000, "y", "10.0.0.1.9", "1::2::3", "")
    assert [await status(host) for host in made_up] == [200, 429, 429, 429, 429]


# -- other origins


async def test_other_origins_are_let_in_if_they_are_named(shortcut, kit):
    live = shortcut(cors_origins=(ORIGIN,), api_keys=KEYS)
    asking = {
        "origin": ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-request-id",
    }
    preflight = await live.http.options("/v1/chat/completions", headers=asking)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert "POST" in preflight.headers["access-control-allow-methods"]
    for key, status in (("no", 401), ("user-key", 200)):
        headers = {"origin": ORIGIN, **bearer(key)}
        response = await live.http.post("/v1/chat/completions", json=kit.hello(), headers=headers)
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == ORIGIN
        assert response.headers["access-control-expose-headers"] == ", ".join(EXPOSED_HEADERS)
        assert "access-control-allow-credentials" not in response.headers
    stranger = {**asking, "origin": "https://evil.example.com"}
    preflight = await live.http.options("/v1/chat/completions", headers=stranger)
    assert preflight.status_code == 400
    assert "access-control-allow-origin" not in preflight.headers


async def test_no_other_origin_is_let_in_by_default(local, kit):
    headers = {"origin": ORIGIN, "access-control-request-method": "POST"}
    response = await local.http.options("/v1/chat/completions", headers=headers)
    assert not any(name.startswith("access-control") for name in response.headers)
    response = await local.http.post(
        "/v1/chat/completions", json=kit.hello(), headers={"origin": ORIGIN}
    )
    assert not any(name.startswith("access-control") for name in response.headers)


@pytest.mark.parametrize("origin", ["app.example.com", "https://a/b", "", "ftp://a", "https://"])
def test_what_is_no_origin_is_refused(origin):
    configuration = read(CommandLine(server_flags={"cors_origin": [origin]}))
    with pytest.raises(ConfigError, match="--cors-origin"):
        configuration.refuse()
    assert SERVER_DEFAULTS["cors_origin"] is None


def test_a_file_sets_what_the_command_line_does(tmp_path):
    file = tmp_path / "omni.yaml"
    file.write_text(
        "server:\n  cors_origin: [https://a.example, 'http://localhost:3000']\n"
        "  rate_limit: 60\n  max_realtime_sessions: 3\n  metrics_access: key\n"
        "  voices_dir: kept\n  max_voices: 0\n"
        "  access_log: null\n  api_key: no\n"
    )
    configuration = read(CommandLine(model_path=str(tmp_path), config=file))
    with pytest.raises(ConfigError, match=r"omni\.yaml:9: server\.api_key: no such setting"):
        configuration.refuse()
    settings = settings_of(configuration)
    assert settings.cors_origins == ("https://a.example", "http://localhost:3000")
    assert (settings.rate_limit, settings.metrics_are_open) == (60, False)
    assert settings.max_realtime_sessions == 3
    assert (settings.voices_dir, settings.max_voices) == (Path("kept"), 0)


# -- ids and the access log


async def test_every_response_has_an_id(shortcut, kit):
    live = shortcut(api_keys=KEYS)
    paths = ("/live", "/health", "/ready", "/metrics", "/version", "/v1/models", "/nowhere")
    for path in paths:
        for headers in (bearer("user-key"), {}):
            mine = await live.http.get(path, headers={**headers, "x-request-id": "mine-1"})
            assert mine.headers["x-request-id"] == "mine-1"
            drawn = await live.http.get(path, headers={**headers, "x-request-id": "no\x01pe"})
            assert re.fullmatch("req_[0-9a-f]{32}", drawn.headers["x-request-id"])
    wrong = await live.http.delete("/v1/models", headers=bearer("user-key"))
    checked_error(wrong, 405, "method_not_allowed")


async def test_clients_cannot_make_up_labels_of_metrics(local):
    for name in ("a", "b"):
        await local.http.get(f"/nowhere/{name}")
        await local.http.request(f"M{name}", "/live")
    lines = (await local.http.get("/metrics")).text.splitlines()
    labels = [line for line in lines if line.startswith("omni_http_responses_total")]
    assert labels == [
        'omni_http_responses_total{method="GET",route="unknown",status="404"} 2.0',
        'omni_http_responses_total{method="unknown",route="/live",status="405"} 2.0',
    ]


async def test_a_bug_has_an_id_and_a_line_too(shortcut, kit):
    seen = []
    live = shortcut(on_access=lambda record: seen.append(line_of(record)))
    live.pipeline.script = lambda request: [RuntimeError("a bug")]
    response = await live.http.post(
        "/v1/chat/completions", json=kit.hello(), headers={"x-request-id": "mine"}
    )
    checked_error(response, 500, "internal_error")
    assert response.headers["x-request-id"] == "mine"
    assert [(line["id"], line["status"]) for line in seen] == [("mine", 500)]


async def test_the_access_log_has_a_line_for_every_request(shortcut, kit, tmp_path):
    file = tmp_path / "access.log"
    with access_log(str(file)) as on_access:
        live = shortcut(on_access=on_access, api_keys=KEYS)
        sent = {**bearer("user-key"), "x-request-id": 'a"b'}
        body = {**kit.hello(), "modalities": ["text", "audio"]}
        await live.http.post("/v1/chat/completions", json=body, headers=sent)
        await live.http.post(
            "/v1/chat/completions", json={**body, "stream": True}, headers=bearer("user-key")
        )
        await live.http.get("/v1/models/lab/other", headers=bearer("user-key"))
        await live.http.get("/nowhere%0Aelse", headers=bearer("user-key"))
        await live.http.post("/v1/chat/completions", json=kit.hello())
    text = file.read_text()
    assert "user-key" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["route"], line["status"]) for line in lines] == [
        ("/v1/chat/completions", 200),
        ("/v1/chat/completions", 200),
        ("/v1/models/{model_id:path}", 404),
        ("/nowhere\nelse", 404),
        ("/v1/chat/completions", 401),
    ]
    spoken = lines[0]
    assert (spoken["id"], spoken["method"]) == ('a"b', "POST")
    assert (spoken["prompt_tokens"], spoken["text_tokens"], spoken["audio_tokens"]) == (11, 5, 7)
    assert lines[1]["audio_tokens"] == 7
    assert spoken["ms"] > 0
    assert len({line["client"] for line in lines[:4]}) == 1
    assert "prompt_tokens" not in lines[2]


async def test_usage_and_times_are_of_the_whole_request(shortcut):
    """Of several choices the prompt counts once; of a recording's segments each is a prompt."""
    seen = []
    live = shortcut(on_access=seen.append)
    reply = (await live.chat(n=3)).json()
    await live.chat(n=3, stream=True)
    for usage in (seen[0].usage, seen[1].usage):
        assert (usage.prompt_tokens, usage.text_tokens, usage.audio_tokens) == (11, 15, 21)
    assert reply["usage"]["completion_tokens"] == 36
    text = (await live.http.get("/metrics")).text
    assert 'omni_time_to_text_done_seconds_count{output="text"} 2.0' in text

    live.pipeline.info = replace(
        live.pipeline.info, transcription=Transcription(messages=lambda part, task: ())
    )
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 16_000 * 40).astype(np.float32)
    files = {"file": ("a.wav", wav_bytes(samples, 16_000))}
    await live.http.post("/v1/audio/transcriptions", files=files)
    assert len(live.pipeline.requests) == 8
    assert (seen[-1].usage.prompt_tokens, seen[-1].usage.text_tokens) == (22, 10)
    text = (await live.http.get("/metrics")).text
    assert 'omni_time_to_text_done_seconds_count{output="text"} 3.0' in text


async def test_a_stream_that_breaks_is_logged_as_what_broke_it(kit):
    seen = []
    pipeline = kit.FakePipeline(
        lambda request: [kit.default_script(request)[0], NotReadyError("gone")]
    )
    context = server_context(pipeline, Settings(served_model_name=kit.MODEL))
    app = guarded(context, lambda record: seen.append(record.status))
    sent = []

    body = json.dumps({**kit.hello(), "stream": True}).encode()
    arriving = [{"type": "http.request", "body": body}]

    async def receive():
        if not arriving:
            await asyncio.Event().wait()
        return arriving.pop()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    await app({**scope, "query_string": b"", "client": None, "app": None}, receive, send)
    assert sent[0]["status"] == 200
    assert seen == [503]


def test_an_access_log_that_cannot_be_written_is_named(tmp_path):
    with (
        pytest.raises(ConfigError, match=r"access_log: .*nowhere"),
        access_log(str(tmp_path / "nowhere" / "log")),
    ):
        pass


def test_the_access_log_survives_its_folder_being_away(tmp_path, monkeypatch):
    """A line that cannot be written is lost, and the next one is not."""
    lost = threading.Event()
    monkeypatch.setattr(logging.Handler, "handleError", lambda handler, record: lost.set())
    folder, away = tmp_path / "logs", tmp_path / "away"
    folder.mkdir()
    with access_log(str(folder / "access.log")) as note:
        folder.rename(away)
        note(RequestRecord(method="GET", client="first"))
        assert lost.wait(5)
        folder.mkdir()
        note(RequestRecord(method="GET", client="second"))
    assert json.loads((folder / "access.log").read_text())["client"] == "second"


def test_lines_go_to_standard_output_for_a_dash(capsys):
    with access_log("-") as on_access:
        on_access(RequestRecord(method="GET", client="c", route="/live", status=200))
    assert json.loads(capsys.readouterr().out)["route"] == "/live"


# -- the door, readiness and versions


async def test_the_door_knows_when_the_last_one_is_out():
    door = Door()
    door.enter()
    door.drain()
    with pytest.raises(NotReadyError, match="shutting down"):
        door.enter()
    for move in (door.pause, door.open):
        with pytest.raises(NotReadyError, match="shutting down"):
            move()
    door.leave()
    await door.empty()
    assert (door.inside, door.state) == (0, DoorState.DRAINING)


async def test_readiness_names_what_is_waited_for(local):
    assert (await local.http.get("/ready")).json() == {"status": "ready", "waiting_for": []}
    local.pipeline.stage_state = "dead"
    response = await local.http.get("/ready")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json() == {"status": "degraded", "waiting_for": ["voice"]}
    starting = readiness_of(Health(status="starting", stages={}), DoorState.OPEN)
    assert (starting.status, starting.is_ready) == ("starting", False)


async def test_the_version_says_what_runs(local):
    said = (await local.http.get("/version")).json()
    assert said["packages"]["omni-server"] == said["version"]
    assert said["pipeline"] == "parrot"
    assert said["variant"] == "speech"
    assert said["checkpoint"] == "parrot"
    assert said["revision"] == "a" * 40
    assert said["cards"] == ["Card"]
    assert said["stages"]["thinker"]["ar_engine"] == "torch"
    assert said["commit"] is None or re.fullmatch("[0-9a-f]{40}", said["commit"])


def test_the_commit_of_a_working_tree_is_read_without_git(tmp_path):
    git = tmp_path / ".git"
    assert checked_out(git) is None
    (git / "refs" / "heads").mkdir(parents=True)
    head, loose = git / "HEAD", git / "refs" / "heads" / "main"
    head.write_text("ref: refs/heads/main\n")
    assert checked_out(git) is None
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{'b' * 40} refs/heads/main\n")
    assert checked_out(git) == "b" * 40
    loose.write_text(f"{'c' * 40}\n")
    assert checked_out(git) == "c" * 40
    head.write_text(f"{'d' * 40}\n")
    assert checked_out(git) == "d" * 40


async def test_the_queue_wait_is_told_by_output(kit):
    context = server_context(kit.FakePipeline(), Settings(served_model_name=kit.MODEL))
    context.metrics.admitted(("text", "audio"), 0.4)
    samples = context.metrics.registry.get_sample_value
    assert samples("omni_queue_wait_seconds_sum", {"output": "audio"}) == 0.4
