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
WINDOWS = {
    "desktop": (1280, 940, "light"),
    "tablet": (820, 1180, "dark"),
    "phone": (390, 844, "light"),
}
HEARING = ROOT / "examples" / "models" / "spoken-verses-en"


def shoot(browser: Browser, name: str) -> None:
    """Save the window."""
    found = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    image = Image.open(io.BytesIO(base64.b64decode(found["data"]))).convert("RGB")
    path = FOLDER / f"page-{name}.png"
    image.quantize(NUM_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Make all pictures."""
    with running(models=(MODEL, f"bible-en-es={MODEL}", HEARING)) as process:
        browser = Browser(process.url)
        try:
            for name, (width, height, scheme) in WINDOWS.items():
                browser.open(width, scheme)
                size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
                browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                browser.choose("source-lang", "es")
                browser.translate(TEXT)
                if name == "desktop":
                    browser.open_alternatives(2)
                shoot(browser, name)
        finally:
            browser.driver.quit()


if __name__ == "__main__":
    main()
