"""The page at /: who gets it, with which headers, and that its files fit together.

What it does in a browser, `nox -s playground` looks at.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from omni_server.cli.configuration import CommandLine, read
from omni_server.cli.serve import settings_of
from omni_server.keys import KeyRing
from omni_server.playground.page import static_files
from omni_server.settings import Settings

STATIC = static_files()
PAGE = STATIC["page.html"].content.decode()
MODULES = {name: file.content.decode() for name, file in STATIC.items() if name.endswith(".js")}
LONGEST_MODULE = 400
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@pytest.fixture
def shortcut(kit):
    """Builds applications without sockets, with settings."""

    def build(**settings):
        said = Settings(served_model_name=kit.MODEL, **settings)
        return kit.shortcut(kit.FakePipeline(), said)

    return build


@pytest.mark.parametrize("path", ["/", *(f"/playground/{name}" for name in STATIC)])
async def test_every_file_is_typed_guarded_and_kept_until_it_changes(local, path):
    first = await local.http.get(path)
    assert first.status_code == 200
    assert first.headers["content-type"] == TYPES[Path(path).suffix or ".html"]
    policy = dict(
        part.split(" ", 1) for part in first.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert first.headers["x-content-type-options"] == "nosniff"
    assert first.headers["cache-control"] == "no-cache"
    etag = first.headers["etag"]
    for kept in (etag, f'"other", W/{etag}'):
        again = await local.http.get(path, headers={"if-none-match": kept})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    changed = await local.http.get(path, headers={"if-none-match": '"other"'})
    assert changed.content == first.content
    head = await local.http.head(path)
    assert (head.status_code, head.content) == (200, b"")


async def test_no_other_file_can_be_had(local):
    for name in ("nothing.js", "page.py", "..%2fpage.py", "__init__.py", "..%2f..%2fapp.py"):
        response = await local.http.get(f"/playground/{name}")
        assert response.status_code == 404, name
        assert response.json()["error"]["code"] == "unknown_url"
    assert (await local.http.post("/")).status_code == 405


async def test_with_keys_the_page_is_open_and_the_api_is_not(shortcut):
    live = shortcut(api_keys=KeyRing.of(["secret"]))
    assert (await live.http.get("/")).status_code == 200
    assert (await live.http.get("/playground/main.js")).status_code == 200
    for path in ("/v1/models", "/playground", "/playgrounds/"):
        assert (await live.http.get(path)).status_code == 401, path


async def test_it_can_be_left_out(shortcut):
    live = shortcut(playground=False)
    for path in ("/", "/playground/main.js"):
        assert (await live.http.get(path)).status_code == 404
    locked = shortcut(playground=False, api_keys=KeyRing.of(["secret"]))
    assert (await locked.http.get("/")).status_code == 401


@pytest.mark.parametrize(
    ("flag", "line", "shown"),
    [
        *((None, "", True), ("off", "", False), ("on", "off", True)),
        *((None, "off", False), (None, "'off'", False), (None, "on", True), (None, "'on'", True)),
    ],
)
def test_flag_and_file_say_whether_there_is_one(tmp_path, flag, line, shown):
    file = tmp_path / "omni.yaml"
    file.write_text(f"server:\n  playground: {line}\n" if line else "variant: text\n")
    configuration = read(
        CommandLine(model_path=str(tmp_path), config=file, server_flags={"playground": flag})
    )
    configuration.refuse()
    assert settings_of(configuration).playground is shown


def test_only_its_own_files_are_asked_for_and_all_of_them_are_there():
    named = re.findall(r'(?:src|href)="([^"#]+)"', PAGE)
    assert named
    imported = [name for text in MODULES.values() for name in re.findall(r'from "\./(.+?)"', text)]
    paths = [*re.findall(r'"playground/(.+?)"', "".join([PAGE, *MODULES.values()])), *imported]
    assert set(paths) | {"page.html"} == set(STATIC)
    assert all(name.startswith("playground/") for name in named)
    assert not re.search(r"//(?!www\.w3\.org/2000/svg)\w+\.\w", PAGE + "".join(MODULES.values()))


def test_what_the_code_looks_for_is_in_the_page():
    wanted = {name for text in MODULES.values() for name in re.findall(r'byId\("(.+?)"\)', text)}
    there = re.findall(r'\bid="(.+?)"', PAGE)
    assert len(there) == len(set(there))
    assert wanted <= set(there)
    labelled = set(re.findall(r'<label[^>]* for="(.+?)"', PAGE))
    fields = set(re.findall(r'<(?:input|select|textarea) id="(.+?)"', PAGE)) - {"files"}
    assert labelled == fields


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_short_and_writes_no_markup(name):
    text = MODULES[name]
    assert text.startswith("/**\n * ")
    assert text.count("\n") <= LONGEST_MODULE
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|Function\(", text
    )
    assert not re.search(r"<script>|<style| style=| on\w+=", PAGE)


def test_the_page_names_no_model():
    assert not re.search(r"qwen|\bming\b", PAGE + "".join(MODULES.values()), re.IGNORECASE)
