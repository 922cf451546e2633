"""Who is taken for whom, how long a request may take, and cancelling: with a scripted pipeline."""

from __future__ import annotations

import pytest

from omni_core.errors import OverloadedError, RateLimitError
from omni_server.settings import Settings


async def asked(live, *, headers=None, **body):
    """The request that the pipeline gets."""
    messages = [{"role": "user", "content": "Hi"}]
    response = await live.http.post(
        "/v1/chat/completions", json={"messages": messages, **body}, headers=headers
    )
    assert response.status_code == 200, response.text
    return live.pipeline.requests[-1]


async def test_clients_are_told_apart_by_key_then_address_and_by_user(local):
    key, other = ({"authorization": f"Bearer {name}"} for name in ("secret-1", "secret-2"))
    clients = [
        (await asked(local, headers=headers, user=user)).client
        for headers in (None, key, other)
        for user in (None, "ann", "bob")
    ]
    assert len(set(clients)) == len(clients)
    assert (await asked(local, headers=key, user="bob")).client == clients[5]
    assert not any("secret" in client for client in clients)


@pytest.mark.parametrize(
    ("said", "client"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("198.51.100.1, 203.0.113.7", "203.0.113.7"),
        ("203.0.113.7:4711", "203.0.113.7"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("[2001:db8::1]:80", "2001:db8::1"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("fe80::1%" + "z" * 5000, "fe80::1"),
        ("x" * 60_000, "unknown"),
        ("localhost", "unknown"),
        ('"} 1 forged', "unknown"),
        ("203.0.113.7.9", "unknown"),
        ("", "127.0.0.1"),
    ],
)
async def test_what_a_proxy_passes_on_counts_if_it_is_an_address(live, said, client):
    assert (await asked(live, headers={"x-forwarded-for": said})).client == client


async def test_who_is_no_proxy_of_ours_is_known_by_its_own_address(kit, monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "192.0.2.1")
    async with kit.serving(kit.FakePipeline(), Settings(served_model_name=kit.MODEL)) as live:
        assert (await asked(live, headers={"x-forwarded-for": "203.0.113.7"})).client == "127.0.0.1"


async def test_a_request_may_ask_for_less_time_and_not_for_more(kit):
    settings = Settings(served_model_name=kit.MODEL, request_timeout_s=30)
    async with kit.serving(kit.FakePipeline(), settings) as live:
        assert (await asked(live)).timeout_s == 30
        assert (await asked(live, timeout=2.5)).timeout_s == 2.5
        assert (await asked(live, timeout=31)).timeout_s == 30


async def test_without_a_limit_a_request_sets_its_own(local):
    assert (await asked(local)).timeout_s is None
    assert (await asked(local, timeout=700)).timeout_s == 700


@pytest.mark.parametrize("timeout", [0, -1, "5"])
async def test_a_timeout_is_a_positive_number(local, timeout):
    assert (await local.refused(400, timeout=timeout))["param"] == "timeout"


async def test_a_client_cancels_its_own_request(local):
    key = {"authorization": "Bearer k", "x-request-id": "a/b c"}
    request = await asked(local, headers=key, user="ann")
    path = "/v1/requests/a%2Fb%20c/cancel"
    mine = {"authorization": "Bearer k"}
    for params, headers in (({}, mine), ({"user": "ann"}, {}), ({"user": "bob"}, mine)):
        response = await local.http.post(path, params=params, headers=headers)
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "request_not_found"
    response = await local.http.post(path, params={"user": "ann"}, headers=mine)
    assert response.status_code == 200
    assert response.json() == {"id": "a/b c", "object": "request.cancelled", "cancelled": 1}
    assert local.pipeline.cancelled[-1] == ("a/b c", request.client)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sent", [b"x" * 129, "é".encode(), "é".encode("latin-1"), b"a\tb"])
async def test_an_id_nobody_could_cancel_by_is_refused(local, kit, sent, stream):
    body = {**kit.hello(), "stream": stream}
    headers = {b"x-request-id": sent}
    response = await local.http.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-request-id"
    assert response.headers["x-request-id"].isascii()
    assert not local.pipeline.requests


@pytest.mark.parametrize("sent", [{}, {"x-request-id": ""}])
async def test_the_id_to_cancel_by_is_drawn_where_none_is_sent(local, sent, kit):
    response = await local.http.post("/v1/chat/completions", json=kit.hello(), headers=sent)
    drawn = response.headers["x-request-id"]
    assert drawn == response.json()["id"] == local.pipeline.requests[-1].request_id


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RateLimitError("share", retry_after_s=7), 429, "rate_limit_error"),
        (OverloadedError("full", retry_after_s=9), 503, "server_error"),
    ],
)
async def test_a_refusal_says_when_to_come_back(local, error, status, kind, stream):
    local.pipeline.script = lambda request: [error]
    response = await local.chat(stream=stream)
    assert response.status_code == status
    assert response.json()["error"]["type"] == kind
    assert response.headers["retry-after"] == str(error.retry_after_s)
    assert response.headers["x-request-id"]
