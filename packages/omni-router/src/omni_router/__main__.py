"""`python -m omni_router`."""

from omni_router.cli import main

if __name__ == "__main__":
    main()
