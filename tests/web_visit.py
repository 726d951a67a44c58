"""A visit to the page: a tab, and the errors in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from web_fleet import NOW, ServedFleet, name_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

WIDE: ViewportSize = {"width": 1280, "height": 800}
NARROW: ViewportSize = {"width": 390, "height": 800}
# Chromium's own sandbox needs rights that containers lack; it only opens our page.
CHROMIUM: dict[str, Any] = {"executable_path": "/usr/bin/chromium", "args": ["--no-sandbox"]}
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: vision}
spec:
  containers:
  - name: main
    image: registry.example/train:1
    resources: {limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 20000}}
"""
VIEWS = {
    "fleet": ("#/fleet", "Fleet"),
    "nodes": ("#/nodes?sort=-memory", "Nodes"),
    "node": (f"#/nodes/{name_of(1)}", f"Node {name_of(1)}"),
    "claims": ("#/claims", "Claims"),
    "waiting": ("#/claims?state=Waiting&sort=since", "Waiting claims"),
    "claim": ("#/claims/robotics/train-00005-gpu", "Claim robotics/train-00005-gpu"),
    "idle": ("#/idle", "Idle claims"),
    "search": ("#/search?text=0000", "Search for 0000"),
    "what-if": ("#/what-if", "What if"),
}
"""By name: the address, and the beginning of its heading."""


@dataclass
class Visit:
    """A tab of the browser.

    Attributes:
        page: The page object of playwright.
        errors: The errors on the console, including violations of the policy.
        asked: The addresses of all requests.
    """

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def log_in(self, token: str = "admin") -> None:
        """Log in with the keyboard."""
        self.page.get_by_label("Token").fill(token)
        self.page.keyboard.press("Enter")
        self.page.get_by_role("heading", level=1, name="Fleet").wait_for()

    def go(self, view: str) -> None:
        """Open one of the `VIEWS`; return when it is shown."""
        address, heading = VIEWS[view]
        self.page.evaluate("address => { location.hash = address; }", address)
        self.page.get_by_role("heading", level=1).filter(has_text=heading).wait_for()

    def ask(self, text: str) -> None:
        """Ask a what-if; return when it is answered."""
        self.page.get_by_label("Manifests").fill(text)
        self.page.get_by_role("button", name="Ask").click()
        self.page.get_by_role("heading", name="Where they would go").wait_for()

    def focused(self) -> str:
        """Return the id of the element that has the focus, or else its text."""
        text: str = self.page.evaluate(
            "() => document.activeElement.id || document.activeElement.textContent"
        )
        return text


@contextmanager
def visit(
    browser: Browser, fleet: ServedFleet, *, scheme: str = "light", viewport: ViewportSize = WIDE
) -> Iterator[Visit]:
    """Open the page in a tab of its own.

    Args:
        browser: Where.
        fleet: What it shows.
        scheme: `light` or `dark`.
        viewport: Size of the tab.
    """
    context = browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light", viewport=viewport, locale="en-GB"
    )
    try:
        page = context.new_page()
        page.clock.set_fixed_time(NOW)
        made = Visit(page, fleet.url)
        page.on(
            "console",
            lambda message: made.errors.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: made.errors.append(str(error)))
        page.on("request", lambda request: made.asked.append(request.url))
        page.goto(fleet.url)
        yield made
    finally:
        context.close()
