"""Settings: a file, the command line before it, and all problems at once."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from omni_router.errors import ConfigError
from omni_router.options import HELP, option, parse, parser
from omni_router.settings import Settings, read


def typed(*arguments: str) -> Settings:
    given = vars(parse(arguments))
    config = given.pop("config")
    given.pop("api_key")
    return read(config, given)


def wrong(*arguments: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        typed(*arguments)
    return str(caught.value).splitlines()


def file_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "router.yaml"
    path.write_text(text)
    return str(path)


def test_nothing_is_set() -> None:
    assert typed() == Settings()


def test_every_setting_is_an_option() -> None:
    assert set(HELP) | {"launch_arguments"} == {field.name for field in fields(Settings)}
    text = parser().format_help()
    assert all(option(name) in text for name in HELP)


def test_workers_are_named_by_their_address() -> None:
    settings = typed("--worker", "http://127.0.0.1:8001/", "--worker", "https://box/base")
    assert [(one.name, one.url) for one in settings.workers] == [
        ("127.0.0.1:8001", "http://127.0.0.1:8001"),
        ("box", "https://box/base"),
    ]


def test_a_file_sets_what_the_command_line_does_not(tmp_path: Path) -> None:
    config = file_of(
        tmp_path,
        "port: 9000\nmax_queue: 5\naffinity: [session]\nworkers:\n"
        "  - http://a:1\n  - {url: http://b:2, name: big, weight: 2, max_in_flight: 7}\n",
    )
    settings = typed("--config", config, "--port", "9001", "--affinity", "prefix,voice")
    assert (settings.port, settings.max_queue) == (9001, 5)
    assert settings.affinity == ("prefix", "voice")
    assert [(one.name, one.weight, one.max_in_flight) for one in settings.workers] == [
        ("a:1", 1.0, None),
        ("big", 2.0, 7),
    ]


def test_lists_may_be_empty() -> None:
    assert typed("--affinity", "none").affinity == ()
    assert typed("--launch", "2", "--gpus", "0,1").gpus == ("0", "1")


def test_what_follows_two_dashes_is_for_workers() -> None:
    settings = typed("--launch", "2", "--", "--model-path", "x", "--port", "1")
    assert settings.launch_arguments == ("--model-path", "x", "--port", "1")
    assert settings.port == 8080


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    config = file_of(
        tmp_path,
        "prot: 3\nmax_queue: -1\nqueue_timeout_s: 5\nworkers: [ftp://x, http://a:1, http://a:1]\n"
        "tls_cert: x\n",
    )
    problems = wrong("--config", config, "--policy", "best")
    assert len(problems) == 6
    assert problems[0].endswith("prot is no setting; did you mean port?")
    assert "max_queue" in problems[1]
    assert ">= 0" in problems[1]
    assert problems[2].startswith("--policy: ")
    assert "'ftp://x' is no URL of a worker" in problems[3]
    assert "two are named a:1" in problems[4]
    assert "--tls-key" in problems[5]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- 1", "must hold settings"),
        ("a: [", "is no YAML"),
        ("port: '80'", "Expected `int`"),
        ("workers: [{url: 'http://a', speed: 1}]", "unknown field `speed`"),
        ("workers: ['http://user:pass@a']", "has a password"),
        ("workers: [{url: 'http://a', name: 'a b'}]", "is no name of a worker"),
        ("workers: ['http://a?x=1']", "is no URL"),
    ],
)
def test_files_that_are_wrong_say_where(tmp_path: Path, text: str, told: str) -> None:
    [problem] = wrong("--config", file_of(tmp_path, text))
    assert told in problem


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert typed("--config", file_of(tmp_path, "# nothing\n")) == Settings()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    [problem] = wrong("--config", str(tmp_path / "none"))
    assert "cannot be read" in problem


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--", "--model-path", "x"), "--launch"),
        (("--gpus", "0"), "--launch"),
        (("--process-port", "9000"), "--processes"),
        (("--processes", "2", "--journal", "j"), "--journal is for one process"),
        (("--processes", "2", "--max-in-flight", "1"), "max_in_flight must be at least"),
        (("--processes", "2", "--max-in-flight-per-worker", "1"), "must be at least --processes"),
    ],
)
def test_contradictions_are_told(arguments: tuple[str, ...], told: str) -> None:
    assert told in wrong(*arguments)[0]


def test_an_option_that_is_none_ends_with_2(capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--wroker", "x"])
    assert caught.value.code == 2
    assert "--wroker" in capsys.readouterr().err
