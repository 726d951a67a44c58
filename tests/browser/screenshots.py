"""`make web-screenshots` takes pictures of the page for docs/operations/web.md, light and dark."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

sys.path.append(str(Path(os.environ["VGPU_BROWSER"]) / "python"))

from playwright.sync_api import sync_playwright

from web_fleet import ServedFleet, Size
from web_visit import CHROMIUM, POD, visit

OUT = Path(__file__).parents[2] / "docs" / "operations" / "web"
SHOWN = ("fleet", "node", "idle", "claim", "what-if")
QUALITY = 70


def main() -> None:
    """Write one picture for each view and colour scheme."""
    OUT.mkdir(exist_ok=True)
    with ServedFleet(Size(100, 600)) as fleet, sync_playwright() as playwright:
        browser = playwright.chromium.launch(**CHROMIUM)
        for scheme in ("light", "dark"):
            with visit(browser, fleet, scheme=scheme) as tab:
                tab.log_in()
                session = tab.page.context.new_cdp_session(tab.page)
                for view in SHOWN:
                    tab.go(view)
                    if view == "what-if":
                        tab.ask(POD)
                    tab.page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
                    # Chromium itself can write WebP; playwright's own call only knows PNG and JPEG.
                    shot = session.send(
                        "Page.captureScreenshot", {"format": "webp", "quality": QUALITY}
                    )
                    path = OUT / f"{view}-{scheme}.webp"
                    path.write_bytes(base64.b64decode(shot["data"]))
                    print(f"{path.name}: {path.stat().st_size >> 10} KiB")
        browser.close()


if __name__ == "__main__":
    main()
