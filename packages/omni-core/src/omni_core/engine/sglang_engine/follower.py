"""Entry point of a rank after the first: `python -m ….follower PIPE MEETING PARENT_PID`, where PIPE
and MEETING are inherited descriptors.

`followers` is its only caller. It ends with its parent, or when the journal does.
"""

from __future__ import annotations

import logging
import os
import sys
from multiprocessing.connection import Connection

from omni_core.parent import die_with


def main(pipe: Connection, meeting: int) -> None:
    """Build the engine of this rank, then do what the journal says."""
    from omni_core.engine.sglang_engine.build import build_rank
    from omni_core.engine.sglang_engine.followers import receive
    from omni_core.engine.sglang_engine.journal import entries, follow
    from omni_core.specs import Ref

    enlisted, split = receive(pipe, meeting)
    ctx = enlisted.context()
    model = Ref(enlisted.model).resolve()(ctx)
    engine = build_rank(ctx, model, split)
    follow(engine, entries(pipe), model.inputs, model.runner.vocab_size)


if __name__ == "__main__":
    _pipe, _meeting, _parent = map(int, sys.argv[1:])
    die_with(_parent)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    main(Connection(_pipe, writable=False), _meeting)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # taking torch apart module by module costs seconds
