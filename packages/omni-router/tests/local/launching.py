"""The command omni-router with `plain_worker.py` in the place of `omni`; the same arguments.

Orphans are left to it, as to process 1 of a container.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from functools import partial
from pathlib import Path

from omni_router.cli import LOG_FORMAT, announce, keys_of, run
from omni_router.options import parse
from omni_router.processes import Parent
from omni_router.settings import read
from omni_router.supervise import Patience

PR_SET_CHILD_SUBREAPER = 36
PLAIN = (sys.executable, str(Path(__file__).with_name("plain_worker.py")), "serve")
QUICK = Patience(steady_s=600, hung_s=3)

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    typed = vars(parse(sys.argv[1:]))
    reread = partial(read, typed.pop("config"), typed)
    typed.pop("api_key")
    settings = reread()
    if not settings.launch:
        sys.exit(run(reread))
    logging.basicConfig(format=LOG_FORMAT, level="INFO")
    sys.exit(Parent(settings, keys_of(settings), reread, announce, PLAIN, QUICK).run())
