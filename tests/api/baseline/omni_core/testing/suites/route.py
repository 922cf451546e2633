from __future__ import annotations
import json
import time
from typing import Any, Final, Protocol
import pytest
CHAT: Final = '/v1/chat/completions'
WITHIN_S: Final = 60.0
ERROR_FIELDS: Final = {'message', 'type', 'param', 'code'}

class Client(Protocol):

    def request(self, method: str, url: str, **more: Any) -> Any:
        ...

    def stream(self, method: str, url: str, **more: Any) -> Any:
        ...

class RouteSuite(Suite):

    @pytest.fixture
    def client(self) -> Client:
        ...

    @pytest.fixture
    def body(self) -> dict[str, Any]:
        ...

    def test_the_model_is_listed_and_can_be_asked_for(self, client: Client, body: dict[str, Any]) -> None:
        ...

    def test_an_answer_has_openais_shape(self, client: Client, body: dict[str, Any]) -> None:
        ...

    def test_a_stream_is_events_that_end_with_done(self, client: Client, body: dict[str, Any]) -> None:
        ...

    @pytest.mark.parametrize(('change', 'status'), [({'model': 'no-such-model'}, 404), ({'messages': []}, 400), ({'messages': 'Hello'}, 400), ({'temperature': -1}, 400), ({'modalities': ['smell']}, 400)])
    def test_what_is_wrong_is_told_as_openai_tells_it(self, client: Client, body: dict[str, Any], change: dict[str, Any], status: int) -> None:
        ...

    def test_what_is_no_request_is_refused(self, client: Client) -> None:
        ...

    def test_who_hangs_up_is_let_go_of(self, client: Client, body: dict[str, Any]) -> None:
        ...

    def test_operators_are_answered(self, client: Client) -> None:
        ...
