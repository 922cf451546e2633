"""The command line's options: one for every setting, and what `--help` says of it.

Knows argparse and the names of settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from omni_router import __version__
from omni_router.settings import Settings

HELP: Final[Mapping[str, str]] = {
    "host": "address to listen on",
    "port": "port to listen on; 0 picks a free one",
    "processes": "processes that share the port, and the bounds",
    "process_port": "first of the ports at which each of them answers alone, as for its metrics",
    "workers": "URL of a worker; may be given again",
    "launch": "workers to start here, with what follows -- as arguments of `omni serve`",
    "gpus": "cards of these workers, with commas; 0+1 gives both to one",
    "log_dir": "directory for the logs of these workers",
    "policy": "least_load, round_robin, power_of_two or random",
    "affinity": "what keeps requests together, with commas: session, voice, prefix; or none",
    "imbalance": "times its share of the load that affinity may give a worker",
    "max_in_flight": "requests with workers at once",
    "max_in_flight_per_worker": "requests with one worker at once",
    "max_queue": "requests that wait for a place; 0 is no queue",
    "queue_timeout_s": "longest wait for a place",
    "retries": "other workers asked where one has not begun a request",
    "max_body_mib": "largest request body",
    "max_message_mib": "largest message of a WebSocket",
    "connect_timeout_s": "longest wait for a worker's connection",
    "probe_interval_s": "between questions to a worker how it is",
    "probe_timeout_s": "longest wait for an answer to one",
    "down_after": "failed probes in a row that make a worker down",
    "up_after": "good ones in a row that make it ready again",
    "cut_after_s": "silence after which a worker's open requests are given up",
    "slow_start_s": "until a worker that came gets its full share",
    "api_key_file": "keys that clients need, one a line; or OMNI_API_KEYS",
    "admin_key_file": "keys of operators, who get /router/v1/; or OMNI_ADMIN_KEY",
    "worker_key_file": "key that the router asks workers with; or OMNI_WORKER_KEY",
    "worker_admin_key_file": "key it updates their weights with; or OMNI_WORKER_ADMIN_KEY",
    "metrics_access": "who may read /metrics: open, key, or auto: open on loopback",
    "tls_cert": "certificate of this server, PEM",
    "tls_key": "key of the certificate, PEM",
    "worker_ca": "certificates that workers under https:// are known by, PEM",
    "access_log": "file for one line of JSON a request, - for standard output",
    "journal": "file that says how far an update of weights has come",
    "drain_timeout_s": "how long SIGTERM waits for open requests",
    "log_level": "debug, info, warning or error",
}
"""{setting: what it is}."""
_LISTS: Final = ("affinity", "gpus")
_API_KEY: Final = (
    "a key that clients need; may be given again. Shows in `ps`: better use --api-key-file"
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What is typed: every setting by name, None where it is not, `config` and `api_key`; exits
    with 2 and what is wrong for what are no options."""
    own, launched = _split(arguments)
    typed = parser().parse_args(own)
    typed.launch_arguments = launched
    return typed


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """What is before `--`, and what is behind it; None without one."""
    given = list(arguments)
    if "--" not in given:
        return given, None
    at = given.index("--")
    return given[:at], given[at + 1 :]


def parser() -> argparse.ArgumentParser:
    """Every setting is an option; what is not typed is None."""
    made = argparse.ArgumentParser(
        prog="omni-router",
        usage="omni-router [OPTIONS] [--launch N -- ARGUMENTS OF omni serve]",
        description="One address in front of many workers.",
        epilog="Settings may stand in a YAML file too, by the same names with _ (and `workers`); "
        "the command line wins. docs/router.md explains each.",
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"omni-router {__version__}")
    made.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings")
    made.add_argument("--api-key", action="append", metavar="KEY", help=_API_KEY)
    defaults = Settings()
    for name, told in HELP.items():
        default = getattr(defaults, name)
        shown = f" ({_written(default)})" if default not in (None, (), 0) else ""
        made.add_argument(option(name), dest=name, help=told + shown, **_form(name))
    return made


def option(name: str) -> str:
    """Of a setting."""
    return "--worker" if name == "workers" else f"--{name.replace('_', '-')}"


def _form(name: str) -> dict[str, Any]:
    if name == "workers":
        return {"action": "append", "metavar": "URL"}
    if name in _LISTS:
        return {"metavar": "LIST", "type": _listed}
    return {"metavar": name.rpartition("_")[2].upper()}


def _listed(text: str) -> list[str]:
    return [] if text == "none" else [word for word in text.split(",") if word]


def _written(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
