"""The omni-router command: from the command line to the process that serves."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial

import uvloop

from omni_router.access import access_log as open_access_log
from omni_router.errors import ConfigError
from omni_router.keys import Keys, read_keys, warn_if_open
from omni_router.options import parse
from omni_router.processes import Parent
from omni_router.reload import Reload
from omni_router.serve import bind, serve
from omni_router.settings import Settings, read

LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
BAD_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Route until a signal; exits with 2 and what is wrong for settings that cannot be."""
    typed = vars(parse(sys.argv[1:] if arguments is None else arguments))
    config, api_keys = typed.pop("config"), typed.pop("api_key")
    try:
        status = run(partial(read, config, typed), api_keys or [])
    except ConfigError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"omni-router: {line}\n")
        raise SystemExit(BAD_USAGE) from None
    raise SystemExit(status)


def run(read_settings: Callable[[], Settings], typed_keys: Sequence[str] = ()) -> int:
    """Route until a signal; the exit status. ConfigError for what cannot be served.

    `read_settings` is called again at SIGHUP.
    """
    settings = read_settings()
    logging.basicConfig(format=LOG_FORMAT, level=settings.log_level.upper())
    keys = keys_of(settings, typed_keys)
    warn_if_open(keys, settings.host, settings.port)
    if settings.launch or settings.processes > 1:
        return Parent(settings, keys, read_settings, announce).run()
    reload = Reload(settings, read_settings)
    with (
        bind(settings.host, settings.port) as listener,
        open_access_log(settings.access_log) as on_access,
    ):
        uvloop.run(serve(settings, keys, listener, announce, on_access, reload))
    return 0


def announce(line: str) -> None:
    """Tell whoever started us."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def keys_of(settings: Settings, typed: Sequence[str] = ()) -> Keys:
    """All keys, from wherever they are set; ConfigError for what is none."""
    return read_keys(
        typed=typed,
        api_file=settings.api_key_file,
        admin_file=settings.admin_key_file,
        worker_file=settings.worker_key_file,
        worker_admin_file=settings.worker_admin_key_file,
    )
