"""`python -m omni_server` is the `omni` command."""

from omni_server.cli import main

main()
