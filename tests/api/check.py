"""Whether the public surface has lost anything that docs/compatibility.md does not announce.

`python tests/api/check.py` compares it with the baseline; `--write` makes this tree the baseline.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import griffe

from http_surface import breaks as http_breaks
from http_surface import surface as http_surface
from surface import announced, modules, write

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "baseline"
HTTP = BASELINE / "http.json"
PACKAGE = "omni_core"
HOOKS = f"{PACKAGE}.hookspecs."
ADDED = (griffe.BreakageKind.PARAMETER_ADDED_REQUIRED,)
"""Of a hook, a new argument breaks nobody: an implementation takes those it wants."""
CHANGED_VALUES = (griffe.BreakageKind.ATTRIBUTE_CHANGED_VALUE,)
"""Of constants and defaults that is tuning, not a break."""


def python_breaks(old: Path, new: Path) -> Iterator[tuple[str, str]]:
    """(path, why) of every break of one tree of stubs against another."""
    before, after = (griffe.load(PACKAGE, search_paths=[root]) for root in (old, new))
    for breakage in griffe.find_breaking_changes(before, after):
        path = breakage.obj.path
        is_argument_of_a_hook = path.startswith(HOOKS) and breakage.kind in ADDED
        if not is_argument_of_a_hook and breakage.kind not in CHANGED_VALUES:
            yield path, breakage.kind.value
    yield from _protocols(before, after)


def _protocols(before: griffe.Object, after: griffe.Object) -> Iterator[tuple[str, str]]:
    """Members that a protocol has got: whoever implements it lacks them."""
    for name, old in before.members.items():
        new = after.members.get(name)
        if new is None or old.is_alias or new.is_alias:
            continue
        if old.is_class and any(str(base).startswith("Protocol") for base in old.bases):
            for added in new.members.keys() - old.members.keys():
                yield f"{old.path}.{added}", "Protocol has a new member"
        elif old.is_module or old.is_class:
            yield from _protocols(old, new)


def main() -> int:
    """Compare, or write."""
    sys.path.insert(0, str(HERE.parent))
    from api_fields import document

    if "--write" in sys.argv:
        shutil.rmtree(BASELINE, ignore_errors=True)
        write(BASELINE)
        HTTP.write_text(json.dumps(http_surface(document()), indent=1, sort_keys=True) + "\n")
        print(f"wrote {len(modules())} public modules and the HTTP API to {BASELINE.name}")
        return 0
    with tempfile.TemporaryDirectory() as now:
        write(Path(now))
        found = list(python_breaks(BASELINE, Path(now)))
    found += http_breaks(json.loads(HTTP.read_text()), http_surface(document()))
    known = announced()
    unannounced = [(path, why) for path, why in found if path not in known]
    for path, why in sorted(unannounced):
        print(f"{path}: {why}")
    if unannounced:
        print(
            f"{len(unannounced)} unannounced breaks of what is public; take them back, or announce "
            "them in docs/compatibility.md a release before"
        )
    return bool(unannounced)


if __name__ == "__main__":
    sys.exit(main())
