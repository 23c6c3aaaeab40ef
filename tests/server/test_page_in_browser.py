"""The page at `/` in headless Chromium, with a real server."""

import shutil

import pytest

from support.paths import MODEL
from support.server_app import decoder
from support.server_process import running, wait_until

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="needs `apt-get install chromium chromium-driver`"
    ),
]

TEXT = "Mirad las aves del cielo, que no siembran, ni siegan."
ENTER, TAB, RIGHT, ESCAPE = "\ue007", "\ue004", "\ue014", "\ue00c"
# what the page has shown, as pairs of the certain and the uncertain part
WATCH = """
window.seen = [];
const field = document.getElementById("translation");
new MutationObserver(() => {
    const text = name => field.querySelector(`span.${name}`)?.textContent ?? "";
    window.seen.push([text("certain"), text("open")]);
}).observe(field, {childList: true});
"""


class Browser:
    """A page in Chromium, as a person sees and uses it."""

    def __init__(self, url: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        self.url = url

    def open(self, width: int = 1280, scheme: str = "light") -> None:
        command = self.driver.execute_cdp_cmd
        size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        command("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        command("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(self.url)
        self.run(WATCH)
        wait_until(lambda: self.run("return document.getElementById('model').options.length"))

    def run(self, script: str):
        return self.driver.execute_script(script)

    def press(self, *keys: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def text(self, name: str) -> str:
        return self.run(f"return document.getElementById('{name}').textContent")

    def focused(self) -> str:
        return self.run("const e = document.activeElement; return e.id || e.textContent")

    def has(self, selector: str) -> bool:
        return self.run(f"return document.querySelector('{selector}') !== null")

    def translate(self, text: str) -> None:
        """Type a text and wait for the result."""
        self.run("document.getElementById('source').focus()")
        self.press(text)
        self.wait_for_result()

    def wait_for_result(self) -> None:
        wait_until(lambda: self.has("#translation button") and not self.has("[aria-busy]"), 30)


@pytest.fixture(scope="module")
def whole_browser():
    with running() as process:
        browser = Browser(process.url)
        yield browser
        browser.driver.quit()
        assert process.stop() == 0


@pytest.fixture
def browser(whole_browser):
    whole_browser.open()
    yield whole_browser
    assert not whole_browser.driver.get_log("browser")


@pytest.fixture(scope="module")
def best():
    import pybeam

    tokenizer = pybeam.load_tokenizer(MODEL)
    [result] = decoder().decode([pybeam.Request(tokenizer.encode(TEXT), n_best=5)])
    return [tokenizer.decode(one.tokens) for one in result.hypotheses]


def test_certain_and_uncertain_parts_come_before_the_result_of_the_decoder(browser, best):
    browser.translate(TEXT)
    assert browser.text("translation") == best[0]
    listed = browser.run("return [...document.querySelectorAll('#best li span:first-child')]"
                         ".map(e => e.textContent)")  # fmt: skip
    assert listed == best
    seen = [pair for pair in browser.run("return window.seen") if any(pair)]
    assert all(best[0].startswith(certain) for certain, _ in seen[-3:])
    assert any(certain and uncertain for certain, uncertain in seen)
    assert browser.run(
        "const colour = name => getComputedStyle(document.querySelector(name)).color;"
        "return colour('#translation button') !== colour('.hint .open')"
    )


def test_the_cost_follows_the_sliders(browser):
    browser.translate(TEXT)
    wide = int(browser.text("expansions"))
    browser.press(TAB)
    wait_until(lambda: browser.focused() != "source")
    browser.run("document.getElementById('width').focus()")
    browser.press("\ue011")  # Home, the narrowest
    wait_until(lambda: browser.text("rows") == "1.0")
    assert browser.text("width-value") == "1" and int(browser.text("expansions")) < wide
    browser.press("\ue010", TAB, "\ue011")  # End, the widest; then the smallest threshold
    wait_until(lambda: browser.text("threshold-value") == "0.5 nats")
    wait_until(lambda: browser.text("width-value") == "16" and browser.text("rows") != "1.0")
    assert float(browser.text("rows")) < 16 and float(browser.text("milliseconds")) > 0


def test_the_keyboard_is_enough(browser, best):
    browser.press(TAB, TAB)  # the link, then the only field that is shown
    assert browser.focused() == "source"
    browser.press(TEXT)
    browser.wait_for_result()
    browser.press(TAB, RIGHT, RIGHT)
    assert browser.focused() == "fowls"
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press(ENTER)
    wait_until(lambda: browser.has("#alternatives-list button"))
    assert browser.focused().startswith("fowls")
    browser.press(ESCAPE)
    assert browser.focused() == "fowls"
    browser.press(ENTER)
    wait_until(lambda: browser.has("#alternatives:not([hidden]) .whole"))
    browser.press(TAB)
    text = browser.run("return document.activeElement.querySelector('.whole').textContent")
    browser.press(ENTER)
    assert browser.text("translation") == text == browser.text("spoken") != best[0]
    assert text.startswith("Behold the ")


def test_a_screen_reader_hears_the_translation_once(browser, best):
    browser.translate(TEXT)
    wait_until(lambda: browser.text("spoken") == best[0])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_window(browser, width, scheme):
    browser.open(width, scheme)
    browser.translate(TEXT)
    browser.run("document.querySelector('#translation button').click()")
    wait_until(lambda: browser.has("#alternatives-list button"))
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    light = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (light == "rgb(255, 255, 255)") == (scheme == "light")


def test_an_empty_text_clears_the_page(browser):
    browser.translate("Jesús lloró.")
    browser.run("document.getElementById('source').select()")
    browser.press("\ue003")  # Backspace
    wait_until(lambda: not browser.text("translation"))
    assert browser.text("expansions") == "–"


def test_what_the_server_refuses_is_said(browser):
    browser.translate("Jesús lloró.")
    browser.run("const s = document.getElementById('source'); s.value = 'sí '.repeat(3000);"
                "s.dispatchEvent(new Event('input'))")  # fmt: skip
    wait_until(lambda: "tokens" in browser.text("problem"))
    # Chromium itself logs every answer that is no 200
    [entry] = browser.driver.get_log("browser")
    assert entry["source"] == "network"
