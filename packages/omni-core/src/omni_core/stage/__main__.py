"""Entry point of stage processes."""

import os
import sys

from omni_core.stage.process import main

code = main(sys.argv[1:])
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # everything of ours is closed; taking torch apart module by module costs seconds
