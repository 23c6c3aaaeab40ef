"""Pictures of the server's page for "Serve": run this when the page looks different.

    PYTHONPATH=.:tests python docs/pictures.py

It opens the page in Chromium (`apt-get install chromium chromium-driver`) with the example models, and writes
howto/page-*.png beside this file.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

from support.browser import Browser
from support.paths import MODEL, ROOT
from support.server_process import running

FOLDER = Path(__file__).parent / "howto"
# the example model has read little else than verses
TEXT = """Mirad las aves del cielo, que no siembran, ni siegan. Jesús lloró.

Jehová es mi pastor; nada me faltará. Y dijo Dios: Sea la luz; y fué la luz."""
# a page has few colours, and a file of them is a third as large
NUM_COLOURS = 96
HEARING = ROOT / "examples" / "models" / "spoken-verses-en"


def shoot(browser: Browser, name: str, top: float, bottom: float) -> None:
    """Save what the page has between two heights, without the bar that scrolls it."""
    width = browser.run("return document.documentElement.clientWidth")
    clip = {"x": 0, "y": top, "width": width, "height": bottom - top, "scale": 1}
    options = {"format": "png", "clip": clip, "captureBeyondViewport": True}
    found = browser.driver.execute_cdp_cmd("Page.captureScreenshot", options)
    image = Image.open(io.BytesIO(base64.b64decode(found["data"]))).convert("RGB")
    path = FOLDER / f"page-{name}.png"
    image.quantize(NUM_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def edges(browser: Browser, selector: str) -> tuple[float, float]:
    """Return where an element begins and ends, with some room around it."""
    script = "const e = document.querySelector(arguments[0]).getBoundingClientRect();"
    top, bottom = browser.run(f"{script} return [e.top + scrollY, e.bottom + scrollY]", selector)
    return top - 16, bottom + 16


def begin(browser: Browser, width: int, scheme: str = "light") -> None:
    browser.open(width, scheme)
    browser.choose("source-lang", "es")
    browser.translate(TEXT)


def main() -> None:
    """Make all pictures."""
    with running(models=(MODEL, f"bible-en-es={MODEL}", HEARING)) as process:
        browser = Browser(process.url)
        try:
            begin(browser, 1120)
            browser.open_alternatives(2)
            shoot(browser, "wordings", 0, edges(browser, "#alternatives")[1])
            begin(browser, 820, "dark")
            browser.run("document.querySelectorAll('.sentence')[3].querySelector('.word').focus()")
            browser.run("document.activeElement.blur()")
            shoot(browser, "tree", *edges(browser, "#closer"))
            begin(browser, 390)
            shoot(browser, "phone", 0, 860)
        finally:
            browser.driver.quit()


if __name__ == "__main__":
    main()
