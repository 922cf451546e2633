"""What `nox -s docs` would stumble over, without building the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def listed(nav: Any) -> Iterator[str]:
    """The pages of a navigation."""
    match nav:
        case str():
            yield nav
        case dict():
            for item in nav.values():
                yield from listed(item)
        case _:
            for item in nav:
                yield from listed(item)


def test_every_page_has_its_place_in_the_navigation() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    found = list(listed(site["nav"]))
    assert sorted(found) == [page.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_pages(page: Path) -> None:
    """Of the site: what else is in the repository is named, since a site does not have it."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for target in LINK.findall(prose):
        assert "://" in target or (page.parent / target) in PAGES, target
