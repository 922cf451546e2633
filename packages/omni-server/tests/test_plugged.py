"""What the server and its command do with what plugins bring."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import httpx
import numpy as np
import pytest
import typer
from starlette.requests import Request
from starlette.responses import JSONResponse

from omni_core.errors import PluginError, RequestError
from omni_core.extensions import (
    AudioCodecSpec,
    CheckSpec,
    CommandSpec,
    Finding,
    MetricSpec,
    RouteSpec,
)
from omni_core.hookspecs import hookimpl
from omni_core.plugins import Plugins
from omni_core.specs import Ref
from omni_server import cli
from omni_server.app import guarded, server_context
from omni_server.keys import KeyRing
from omni_server.plugged import Plugged
from omni_server.settings import Settings

HERE = "test_plugged_parrot"


@pytest.fixture(autouse=True)
def parrot(monkeypatch):
    """The module that Refs of these tests name."""
    module = ModuleType(HERE)
    monkeypatch.setitem(sys.modules, HERE, module)
    return module


def plugins(**hooks):
    """A registry of one plugin, parrot, whose hooks give these."""
    module = ModuleType("made")
    for name, given in hooks.items():
        setattr(module, name, hookimpl(specname=name)(lambda given=given: given))
    registry = Plugins()
    registry.register(module, "parrot")
    return registry


def client(kit, brought, **settings):
    """The application of a server with these plugins."""
    settings = Settings(served_model_name=kit.MODEL, **settings)
    app = guarded(server_context(kit.FakePipeline(), settings, Plugged.of(brought)))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(base_url="http://omni", transport=transport)


# -- register_routes


def feathers(pipeline):
    async def endpoint(request: Request) -> JSONResponse:
        if request.query_params.get("of") == "a cat":
            raise RequestError("A cat has none.", param="of")
        return JSONResponse({"pipeline": pipeline.name})

    return endpoint


async def test_register_routes_are_served_among_ours(kit, parrot):
    parrot.feathers = feathers
    spec = RouteSpec(path="/v1/feathers", endpoint=Ref(f"{HERE}:feathers"))
    ring = KeyRing.of(["sk-right"])
    async with client(kit, plugins(register_routes=[spec]), api_keys=ring) as http:
        assert (await http.get("/v1/feathers")).status_code == 401
        http.headers["authorization"] = "Bearer sk-right"
        answer = await http.get("/v1/feathers")
        assert answer.json() == {"pipeline": "parrot"}
        assert answer.headers["x-request-id"]
        refused = await http.get("/v1/feathers", params={"of": "a cat"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "of")
        assert (await http.post("/v1/feathers")).status_code == 405
        document = (await http.get("/openapi.json")).json()
        assert set(document["paths"]["/v1/feathers"]) == {"get"}


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/chat/completions"), ("GET", "/v1/models/mine"), ("GET", "/health")],
)
def test_register_routes_may_not_take_ours(kit, parrot, method, path):
    parrot.feathers = feathers
    spec = RouteSpec(path=path, endpoint=Ref(f"{HERE}:feathers"), methods=(method,))
    with pytest.raises(PluginError, match=f"'parrot' registers route '{method} {path}'.*own"):
        client(kit, plugins(register_routes=[spec]))


def test_register_routes_that_cannot_be_made_name_the_plugin(kit):
    spec = RouteSpec(path="/feathers", endpoint=Ref(f"{HERE}:missing"))
    with pytest.raises(PluginError, match=r"plugin 'parrot': route '/feathers': .*missing"):
        client(kit, plugins(register_routes=[spec]))


# -- register_metrics


async def test_register_metrics_are_the_words_beside_a_number(kit):
    spec = MetricSpec(stat="running", help="Parrots in the air")
    async with client(kit, plugins(register_metrics=[spec])) as http:
        text = (await http.get("/metrics")).text
    assert "# HELP omni_stage_running Parrots in the air" in text


# -- register_audio_codecs


class Beats:
    """A writer whose bytes are how many samples it was given."""

    def __init__(self, rate):
        self.rate = rate
        self.count = 0

    def push(self, samples):
        self.count += len(samples)
        return b""

    def flush(self):
        return json.dumps({"rate": self.rate, "samples": self.count}).encode()


def codec(**fields):
    given = {"name": "beats", "media_type": "audio/beats", "writer": Ref(f"{HERE}:Beats")}
    return AudioCodecSpec(**given | fields)


async def speak(http, **body):
    return await http.post("/v1/audio/speech", json={"input": "Hi", "voice": "ethan", **body})


async def test_register_audio_codecs_are_formats_of_speech(kit, parrot):
    parrot.Beats = Beats
    brought = plugins(register_audio_codecs=[codec()])
    async with client(kit, brought) as http:
        answer = await speak(http, response_format="beats")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/beats")
        assert answer.json() == {"rate": kit.RATE, "samples": 480 + 31 + 960}
        [model] = (await http.get("/v1/models")).json()["data"]
        assert model["audio_formats"]["speech"][-1] == "beats"
        refused = (await speak(http, response_format="drums")).json()["error"]
        assert "opus" in refused["message"]
        assert "beats" in refused["message"]
        schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]
        known = schemas["SpeechBody"]["properties"]["response_format"]
        assert "beats" in json.dumps(known)


async def test_register_audio_codecs_get_a_rate_they_know(kit, parrot):
    parrot.Beats = Beats
    brought = plugins(register_audio_codecs=[codec(rates=(8_000, 2 * kit.RATE))])
    async with client(kit, brought) as http:
        heard = (await speak(http, response_format="beats")).json()
    assert heard["rate"] == 2 * kit.RATE
    assert np.isclose(heard["samples"], 2 * (480 + 31 + 960), atol=2)


def test_register_audio_codecs_may_not_take_ours(kit):
    with pytest.raises(PluginError, match=r"'parrot' registers audio codec 'opus'.*server's own"):
        client(kit, plugins(register_audio_codecs=[codec(name="opus")]))


# -- register_commands and register_checks


@pytest.fixture
def omni(monkeypatch, capsys):
    """Run the command's entry point: omni(plugins, *arguments) -> (status, out, err)."""

    def run(brought, *arguments):
        monkeypatch.setattr(Plugins, "discover", lambda self: brought)
        monkeypatch.setattr("sys.argv", ["omni", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return run


def squawk(words: list[str], times: int = 1) -> None:
    """Say words loudly."""
    typer.echo(" ".join(word.upper() for word in words * times))


def test_register_commands_run_with_their_own_options(omni, parrot):
    parrot.squawk = squawk
    spec = CommandSpec(name="squawk", help="Say it loudly.", function=Ref(f"{HERE}:squawk"))
    brought = plugins(register_commands=[spec])
    assert omni(brought, "squawk", "hi", "you", "--times", "2")[:2] == (0, "HI YOU HI YOU\n")
    assert omni(brought, "squawk", "--tims")[0] == 2
    status, out, _ = omni(brought, "squawk", "--help")
    assert status == 0
    assert "Say words loudly." in out
    assert "--times" in out


def test_register_commands_are_imported_only_when_run(omni):
    spec = CommandSpec(name="squawk", help="Say it loudly.", function=Ref("no_such_module:run"))
    brought = plugins(register_commands=[spec])
    status, out, _ = omni(brought, "--help")
    assert status == 0
    assert "Say it loudly." in out
    assert omni(brought, "version")[0] == 0
    status, _, err = omni(brought, "squawk")
    assert status == 1
    assert "cannot import 'no_such_module'" in err


def test_register_commands_may_not_take_ours(omni):
    spec = CommandSpec(name="serve", help="Tea.", function=Ref(f"{HERE}:squawk"))
    brought = plugins(register_commands=[spec])
    status, out, err = omni(brought, "--help")
    assert status == 0
    assert "OpenAI's HTTP API" in out
    assert "plugin 'parrot' registers command 'serve', which is omni's own" in err
    assert omni(brought, "squawk")[0] == 1


def test_register_checks_decide_how_doctor_ends(omni, parrot):
    parrot.beak = lambda: Finding(level="problem", text="no beak; grow one")
    brought = plugins(register_checks=[CheckSpec(name="beak", check=Ref(f"{HERE}:beak"))])
    status, out, _ = omni(brought, "doctor")
    assert (status, out.splitlines()[-1].split()) == (
        1,
        ["problem", "beak", "no", "beak;", "grow", "one", "(parrot)"],
    )
    status, out, _ = omni(brought, "doctor", "--json")
    assert json.loads(out)[-1] == {
        "name": "beak", "owner": "parrot", "level": "problem", "text": "no beak; grow one",
    }  # fmt: skip
    assert omni(plugins(), "doctor")[0] == 0
