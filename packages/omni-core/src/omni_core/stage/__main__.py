"""Entry point of stage processes: `python -m omni_core.stage NAME RUN_DIR PARENT_PID`.

The launcher is its only caller.
"""

import os
import sys

from omni_core.parent import die_with

_name, _run_dir, _parent = sys.argv[1:]
die_with(int(_parent))

from omni_core.stage.process import main  # noqa: E402 - takes a while, and the parent may die

code = main([_name, _run_dir])
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # everything of ours is closed; taking torch apart module by module costs seconds
