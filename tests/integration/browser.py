"""A real browser that opens a page of the proxy's: Chromium without a window.

Rules. It talks to this machine alone, and whatever it complains about, a violated policy or an error of a script, fails
the test. Where there is no browser the test is skipped with that reason; where CI=true it fails.
"""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from typing import Any, Final

from playwright.async_api import Page, async_playwright, expect

from tests.needs import lacks

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
expect.set_options(timeout=20_000)  # milliseconds that something may take to show up

PHONE: Final = {"width": 390, "height": 844}
DESK: Final = {"width": 1280, "height": 900}


def program() -> str:
    """The browser; TRANSOM_BROWSER names another. Without one the test is skipped."""
    found = os.environ.get("TRANSOM_BROWSER") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    return found or lacks("no Chromium is installed", "apt-get install chromium")


@contextlib.asynccontextmanager
async def opened(url: str, *, goes_wrong: bool = False, **options: Any) -> AsyncIterator[Page]:
    """The page at this address. `goes_wrong`: refusals and lost connections, which the browser logs, are expected.

    `options` are those of a browser's context: `viewport`, `color_scheme` and so on.
    """
    options = {"viewport": DESK, "reduced_motion": "reduce", **options}
    # Root has no namespace of its own to shut the browser's processes into.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    complaints: list[str] = []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program(), args=arguments)
        try:
            page = await (await browser.new_context(**options)).new_page()
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
            page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
            page.on(
                "request", lambda asked: complaints.append(asked.url) if _is_foreign(asked.url, url) else None
            )
            await page.goto(f"{url}/-/")
            yield page
        finally:
            await browser.close()
    wrong = [said for said in complaints if not (goes_wrong and said.startswith("Failed to load resource"))]
    assert not wrong


def _is_foreign(asked: str, url: str) -> bool:
    return not asked.startswith((f"{url}/-/", "data:"))
