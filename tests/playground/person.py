"""What a person does on the page, one step each, for the tests of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Route, expect

HERE = Path(__file__).parent
KEY = "key-of-the-tests"
AWKWARD_KEY = "a+key/in=base64=="
"""Another that the server takes; it is no name of a subprotocol."""
OpenPage = Callable[..., Page]
KeepPicture = Callable[[Page, str], None]


def ask(page: Page, text: str) -> None:
    written(page).fill(text)
    written(page).press("Enter")


def answered(page: Page, number: int = 0) -> Any:
    """The turn of a reply that is all there."""
    turn = page.locator(".assistant").nth(number)
    expect(turn.locator("dl")).to_be_visible()
    return turn


def written(page: Page) -> Any:
    return page.get_by_role("textbox", name="Message")


def limit(page: Page, tokens: int) -> None:
    if not page.get_by_label("Max tokens").is_visible():
        page.get_by_role("button", name="Settings").click()
    page.get_by_label("Max tokens").fill(str(tokens))
    if written(page).is_hidden():
        page.get_by_role("button", name="Settings").click()


def fulfil(path: str, *answers: Callable[[Route], None]) -> Callable[[Page], None]:
    """The first requests for a path are answered thus, and later ones by the server."""
    left = list(answers)

    def handle(route: Route) -> None:
        if left:
            left.pop(0)(route)
        else:
            route.continue_()

    return lambda page: page.route(f"**/{path}", handle)


def painted(folder: Path) -> Path:
    from PIL import Image

    path = folder / "picture.png"
    Image.linear_gradient("L").resize((320, 240)).save(path)
    return path


def illegible(page: Page) -> list[str]:
    """Texts with less contrast than WCAG AA wants."""
    found: list[str] = page.evaluate((HERE / "contrast.js").read_text())
    return found
