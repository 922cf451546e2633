"""Check that every wheel of a directory says what an index and an installer want to know.

`python metadata.py DIR` prints each wheel's size. Knows files; installs and imports nothing.
"""

from __future__ import annotations

import re
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

MODULE_OF = re.compile(r"(?P<module>omni_\w+?)-(?P<version>[\d.]+)-py3-none-any\.whl")
STATED_ONCE = (
    "Summary",
    "Author",
    "License-Expression",
    "License-File",
    "Requires-Python",
    "Description-Content-Type",
    "Keywords",
)
PYTHONS = ("3.11", "3.12", "3.13")


def problems(wheel: Path) -> list[str]:
    """What is missing from one wheel, one sentence each."""
    named = MODULE_OF.fullmatch(wheel.name)
    if named is None:
        return [f"{wheel.name}: not a pure wheel of ours"]
    module, info = named["module"], f"{named['module']}-{named['version']}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        licensed = f"{info}/licenses/LICENSE" in names and b"Apache License" in archive.read(
            f"{info}/licenses/LICENSE"
        )
    strays = sorted(n for n in names if not n.startswith((f"{module}/", f"{info}/")))
    found = [f"{wheel.name}: no {field}" for field in STATED_ONCE if not metadata[field]]
    found += [
        f"{wheel.name}: no classifier for Python {v}" for v in PYTHONS if not runs(metadata, v)
    ]
    found += [f"{wheel.name}: {name} belongs to no package" for name in strays]
    found += [] if licensed else [f"{wheel.name}: no licence text"]
    found += [] if f"{module}/py.typed" in names else [f"{wheel.name}: no py.typed"]
    found += [] if metadata.get_payload() else [f"{wheel.name}: no description"]
    return found


def runs(metadata: Message, version: str) -> bool:
    """Whether the classifiers name a version of Python."""
    classifiers = metadata.get_all("Classifier") or []
    return f"Programming Language :: Python :: {version}" in classifiers


def main(directory: Path) -> int:
    """Print sizes and problems; 1 if there are problems or no wheels."""
    wheels = sorted(directory.glob("*.whl"))
    found = [problem for wheel in wheels for problem in problems(wheel)]
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 1024:8.1f} KiB  {wheel.name}")
    print(*found, sep="\n")
    return int(bool(found) or not wheels)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
