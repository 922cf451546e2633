"""The command omni-router with `plain_worker.py` in the place of `omni`; the same arguments.

Orphans are left to it, as to process 1 of a container.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from functools import partial
from pathlib import Path

from omni_router.cli import LOG_FORMAT, announce, keys_of
from omni_router.options import parse
from omni_router.processes import Parent
from omni_router.settings import read

PR_SET_CHILD_SUBREAPER = 36
PLAIN = (sys.executable, str(Path(__file__).with_name("plain_worker.py")), "serve")

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    logging.basicConfig(format=LOG_FORMAT, level="INFO")
    typed = vars(parse(sys.argv[1:]))
    reread = partial(read, typed.pop("config"), typed)
    typed.pop("api_key")
    settings = reread()
    sys.exit(Parent(settings, keys_of(settings), reread, announce, PLAIN).run())
