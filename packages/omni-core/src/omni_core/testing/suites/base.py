"""What every suite is: laws that a subclass inherits and cannot soften in silence.

A law is a method named `test_...`. A subclass gives the fixtures that a suite asks for; those of a
whole class are class methods. It may add tests of its own. It may replace a law only by one that is
marked `skip` or `xfail` with a reason, which then stands in every report.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

_MARKS: Final = ("skip", "skipif", "xfail")


class Suite:
    """Base of all suites."""

    since: ClassVar[str] = "0.1"
    """The minor version of omni-core that first had the suite."""

    def __init_subclass__(cls, **more: Any) -> None:
        """TypeError for a law that is replaced or removed without a reason."""
        super().__init_subclass__(**more)
        for name in laws_of(cls.__mro__[1:]):
            if name in vars(cls) and not _has_reason(vars(cls)[name]):
                raise TypeError(
                    f"{cls.__name__}.{name} replaces a law of the suite; to leave the law out, "
                    "mark it with pytest.mark.skip(reason=...) or pytest.mark.xfail(reason=...)"
                )


def laws_of(suites: Iterable[type]) -> list[str]:
    """Names of the laws that these classes have, sorted."""
    found = {name for suite in suites if issubclass(suite, Suite) for name in vars(suite)}
    return sorted(name for name in found if name.startswith("test_"))


def _has_reason(law: object) -> bool:
    marks = getattr(law, "pytestmark", [])
    return any(mark.name in _MARKS and mark.kwargs.get("reason") for mark in marks)


def missing(suite: Suite | type[Suite], fixture: str) -> NotImplementedError:
    """The error of a fixture that a subclass must give."""
    name = (suite if isinstance(suite, type) else type(suite)).__name__
    return NotImplementedError(
        f"{name} needs a fixture {fixture!r}; see the docstring of its suite"
    )
