"""Check that omni-core works with its hard dependencies only: a request through its echo pipeline.

Run as `python -I core_alone.py` from an empty directory.
"""

from __future__ import annotations

import asyncio
import sys
import time
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

IMPORT_LIMIT_S = 0.3
INSTALLERS = {"pip", "setuptools", "omni-core"}
DEPENDENCIES_LIMIT = 5


def import_s() -> float:
    """CPU seconds that the first import of omni_core takes."""
    start_s = time.process_time()
    import omni_core  # noqa: F401 - timed

    return time.process_time() - start_s


async def said(checkpoint: Path) -> str:
    """What the echo pipeline answers, from real stage processes."""
    from omni_core.pipeline import Pipeline
    from omni_core.testing import echo
    from omni_core.types import Message, Request, TextDelta, TextPart

    message = Message(role="user", content=(TextPart(text="quite alone"),))
    async with Pipeline.load(echo.write_checkpoint(checkpoint), plugins=echo.plugins()) as pipeline:
        events = [event async for event in pipeline.generate(Request(messages=(message,)))]
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def main() -> None:
    """Check, and print what was measured."""
    took_s = import_s()
    assert took_s < IMPORT_LIMIT_S, f"importing omni_core took {took_s:.2f} s"
    assert find_spec("torch") is None, "core pulled in torch"
    brought = {d.name for d in distributions()} - INSTALLERS
    assert len(brought) <= DEPENDENCIES_LIMIT, sorted(brought)
    assert asyncio.run(said(Path("echo"))) == "quite alone "
    print(f"omni-core alone: imported in {took_s:.3f} s, brings {', '.join(sorted(brought))}")


if __name__ == "__main__":
    sys.exit(main())
