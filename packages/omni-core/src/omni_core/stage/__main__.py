"""Entry point of stage processes."""

import sys

from omni_core.stage.process import main

sys.exit(main(sys.argv[1:]))
