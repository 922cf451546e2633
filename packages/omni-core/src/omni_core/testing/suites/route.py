"""`RouteSuite`: a server speaks the API in the shapes that OpenAI's clients expect."""

from __future__ import annotations

import json
import time
from typing import Any, Final, Protocol

import pytest

from omni_core.testing.suites.base import Suite, missing

CHAT: Final = "/v1/chat/completions"
WITHIN_S: Final = 60.0
ERROR_FIELDS: Final = {"message", "type", "param", "code"}


class Client(Protocol):
    """What the suite needs of an HTTP client; `httpx.Client(base_url=...)` is one."""

    def request(self, method: str, url: str, **more: Any) -> Any:
        """An answer with `status_code`, `headers`, `text` and `json()`."""

    def stream(self, method: str, url: str, **more: Any) -> Any:
        """A context manager of an answer with `iter_lines()`, which hangs up when it ends."""


class RouteSuite(Suite):
    """Give `client`, to a server that runs, and `body`, a chat request that it answers."""

    @pytest.fixture
    def client(self) -> Client:
        """To the server's root."""
        raise missing(self, "client")

    @pytest.fixture
    def body(self) -> dict[str, Any]:
        """With "model" and "messages"; short."""
        raise missing(self, "body")

    def test_the_model_is_listed_and_can_be_asked_for(
        self, client: Client, body: dict[str, Any]
    ) -> None:
        """Under the name that requests give."""
        listed = client.request("GET", "/v1/models").json()
        assert listed["object"] == "list"
        assert body["model"] in [model["id"] for model in listed["data"]]
        one = client.request("GET", f"/v1/models/{body['model']}").json()
        assert (one["id"], one["object"]) == (body["model"], "model")

    def test_an_answer_has_openais_shape(self, client: Client, body: dict[str, Any]) -> None:
        """Of a chat completion, with its usage."""
        answer = client.request("POST", CHAT, json=body)
        assert answer.status_code == 200, answer.text
        reply = answer.json()
        assert reply["object"] == "chat.completion"
        [choice] = reply["choices"]
        assert (choice["index"], choice["message"]["role"]) == (0, "assistant")
        assert choice["finish_reason"] in ("stop", "length", "tool_calls")
        usage = reply["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert answer.headers["x-request-id"]

    def test_a_stream_is_events_that_end_with_done(
        self, client: Client, body: dict[str, Any]
    ) -> None:
        """Each a line of JSON and an empty one; together they say what the whole answer says."""
        whole = client.request("POST", CHAT, json=body).json()["choices"][0]
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        answer = client.request("POST", CHAT, json=asked)
        assert answer.headers["content-type"].startswith("text/event-stream")
        blocks = answer.text.split("\n\n")
        assert blocks.pop() == ""
        assert all(block.startswith("data: ") for block in blocks)
        assert blocks.pop() == "data: [DONE]"
        chunks = [json.loads(block.removeprefix("data: ")) for block in blocks]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert chunks[-1]["usage"]["completion_tokens"] > 0
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        said = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert said == (whole["message"]["content"] or "")
        reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        assert reasons == [whole["finish_reason"]]

    @pytest.mark.parametrize(
        ("change", "status"),
        [
            ({"model": "no-such-model"}, 404),
            ({"messages": []}, 400),
            ({"messages": "Hello"}, 400),
            ({"temperature": -1}, 400),
            ({"modalities": ["smell"]}, 400),
        ],
    )
    def test_what_is_wrong_is_told_as_openai_tells_it(
        self, client: Client, body: dict[str, Any], change: dict[str, Any], status: int
    ) -> None:
        """Before anything is streamed, too."""
        for stream in (False, True):
            answer = client.request("POST", CHAT, json={**body, **change, "stream": stream})
            assert answer.status_code == status, answer.text
            error = _error(answer)
            assert error["type"] == "invalid_request_error"
            assert error["param"] is None or error["param"].startswith(next(iter(change)))

    def test_what_is_no_request_is_refused(self, client: Client) -> None:
        """Broken JSON, a wrong method, an unknown path."""
        broken = client.request("POST", CHAT, content=b'{"model": ')
        assert (broken.status_code, bool(_error(broken))) == (400, True)
        wrong = client.request("GET", CHAT)
        assert (wrong.status_code, bool(_error(wrong))) == (405, True)
        unknown = client.request("GET", "/v1/no-such-thing")
        assert (unknown.status_code, bool(_error(unknown))) == (404, True)

    def test_who_hangs_up_is_let_go_of(self, client: Client, body: dict[str, Any]) -> None:
        """And holds no place among the requests that run."""
        with client.stream("POST", CHAT, json={**body, "stream": True}) as answer:
            next(line for line in answer.iter_lines() if line)
        until_s = time.monotonic() + WITHIN_S
        while _number(client, "omni_requests_in_flight") or _number(client, "omni_aborts_pending"):
            assert time.monotonic() < until_s
            time.sleep(0.01)

    def test_operators_are_answered(self, client: Client) -> None:
        """By what orchestrators and Prometheus ask."""
        for path in ("/live", "/health", "/ready", "/version", "/openapi.json"):
            answer = client.request("GET", path)
            assert (answer.status_code, bool(answer.json())) == (200, True), path
        assert "# TYPE omni_requests_total counter" in client.request("GET", "/metrics").text


def _error(answer: Any) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == ERROR_FIELDS
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


def _number(client: Client, name: str) -> float:
    lines = client.request("GET", "/metrics").text.splitlines()
    [value] = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")]
    return float(value)
