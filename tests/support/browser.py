"""The server's page in headless Chromium, as a person sees and uses it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from selenium import webdriver

from support.server_process import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
# axe.min.js of the package axe-core
AXE = os.environ.get("PYBEAM_AXE")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
ENTER, TAB, ESCAPE, BACKSPACE, HOME, END = (
    "\ue007",
    "\ue004",
    "\ue00c",
    "\ue003",
    "\ue011",
    "\ue010",
)
UP, RIGHT, DOWN = "\ue013", "\ue014", "\ue015"
ARGUMENTS = [
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"),
    # a microphone that beeps, and may be used
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
]
# all that the page has shown, as pairs of the certain and the uncertain part
WATCH = """
window.seen = [];
const field = document.getElementById("translation");
new MutationObserver(() => {
    const text = name => field.querySelector(`span.${name}`)?.textContent ?? "";
    window.seen.push([text("certain"), text("open")]);
}).observe(field, {childList: true, subtree: true});
"""


class Browser:
    """A page in Chromium."""

    def __init__(self, url: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for argument in ARGUMENTS:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        self.url = url

    def open(self, width: int = 1280, scheme: str = "light") -> None:
        self.load(width, scheme)
        self.run(WATCH)
        wait_until(lambda: self.run("return document.getElementById('file').accept"), 30)

    def load(self, width: int = 1280, scheme: str = "light") -> None:
        command = self.driver.execute_cdp_cmd
        size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        command("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        command("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(self.url)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def module(self, name: str, expression: str) -> Any:
        """Return the value of an expression about `it`, a module of the page."""
        return self.driver.execute_async_script(
            f"const done = arguments[0]; import('./page/{name}.js').then(it => {expression}).then(done);"
        )

    def press(self, *keys: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def click(self, selector: str, index: int = 0) -> None:
        """Click as a pointer does, so that what is covered or hidden fails."""
        element = self.driver.find_elements("css selector", selector)[index]
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def choose(self, name: str, value: str) -> None:
        self.run(
            "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
            "e.dispatchEvent(new Event('change'))",
            *(name, value),
        )

    def text(self, name: str) -> str:
        return self.run(f"return document.getElementById('{name}').textContent")

    def texts(self, selector: str) -> list[str]:
        return self.run(
            f"return [...document.querySelectorAll('{selector}')].map(e => e.textContent)"
        )

    def source(self) -> str:
        return self.run("return document.getElementById('source').value")

    def focused(self) -> str:
        return self.run("const e = document.activeElement; return e.id || e.textContent")

    def has(self, selector: str) -> bool:
        return self.run(f"return document.querySelector('{selector}') !== null")

    def shows(self, name: str) -> bool:
        return self.run(f"return document.getElementById('{name}').checkVisibility()")

    def write(self, text: str) -> None:
        """Put a text into the field at once, as from a clipboard."""
        self.run(
            "const e = document.getElementById('source'); e.value = arguments[0];"
            "e.dispatchEvent(new Event('input'))",
            text,
        )

    def translate(self, text: str) -> None:
        """Write a text and wait for its translation."""
        self.write(text)
        self.wait_for_result()

    def wait_for_result(self) -> None:
        self.wait_for_words()
        wait_until(lambda: not self.has("[aria-busy]"), 60)

    def wait_for_words(self) -> None:
        # what has been written is waited for before it is sent
        wait_until(lambda: self.has("[aria-busy]") or self.has("#translation .word"), 30)
        wait_until(lambda: self.has("#translation .word"), 30)

    def open_alternatives(self, index: int) -> list[str]:
        """Click a word of the translation and return the wordings."""
        self.click("#translation .word", index)
        wait_until(lambda: self.has("#alternatives-list button"), 30)
        return self.texts("#alternatives-list .whole")

    def give(self, path: Path) -> None:
        """Open a file."""
        field = self.run("const e = document.getElementById('file'); e.hidden = false; return e")
        field.send_keys(str(path))
        self.run("arguments[0].hidden = true", field)

    def barriers(self) -> list:
        """Return what axe finds that keeps people out."""
        self.run(Path(str(AXE)).read_text("utf-8"))
        return self.driver.execute_async_script(
            "const done = arguments[1]; axe.run(document, {runOnly: arguments[0]}).then(found =>"
            "done(found.violations.map(one => [one.id, one.nodes.map(node => node.html)])))",
            RULES,
        )
