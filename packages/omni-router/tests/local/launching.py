"""The command omni-router with `plain_worker.py` in the place of `omni`; the same arguments."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path

from omni_router.cli import LOG_FORMAT, announce, keys_of
from omni_router.options import parse
from omni_router.processes import Parent
from omni_router.settings import read

PLAIN = (sys.executable, str(Path(__file__).with_name("plain_worker.py")), "serve")

if __name__ == "__main__":
    logging.basicConfig(format=LOG_FORMAT, level="INFO")
    typed = vars(parse(sys.argv[1:]))
    reread = partial(read, typed.pop("config"), typed)
    typed.pop("api_key")
    settings = reread()
    sys.exit(Parent(settings, keys_of(settings), reread, announce, PLAIN).run())
