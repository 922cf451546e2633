"""News of what takes long: who starts a process and hears nothing of it takes it for dead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

EVERY_S: Final = 30.0
LONGEST_S: Final = 3600.0
"""What takes longer than this has stopped, whatever its thread looks like."""


@contextmanager
def reported(report: Callable[[str], None], text: str, every_s: float = EVERY_S) -> Iterator[None]:
    """Report `text` now, and with the seconds it has taken again and again until the context is
    left; from another thread, so `report` must take that."""
    over = threading.Event()
    began_s = time.monotonic()

    def go_on() -> None:
        while not over.wait(every_s) and (passed_s := time.monotonic() - began_s) < LONGEST_S:
            report(f"{text}, for {passed_s:.0f} s now")

    report(text)
    teller = threading.Thread(target=go_on, name="news", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
