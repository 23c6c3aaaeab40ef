"""The page at `/` in headless Chromium: history, files, sound, colours, problems, and who may be kept out."""

import pytest

from support.paths import ROOT
from support.server_process import running, wait_until

pytest.importorskip("selenium.webdriver")
from support.browser import AXE, ESCAPE, Browser

pytestmark = pytest.mark.slow

TEXT = "Mirad las aves del cielo, que no siembran, ni siegan. Jesús lloró."
FIRST = ROOT / "examples" / "speech" / "first.wav"


def open_history(browser) -> list[str]:
    """Open the history, and return its texts."""
    browser.click("#open-history")
    return browser.texts("#history-list .quoted")


def test_history_is_kept_opened_and_deleted(browser):
    browser.translate("Jesús")
    wait_until(lambda: browser.run("return localStorage.length") == 1)
    # the same text, further on
    browser.translate("Jesús lloró.")
    wait_until(lambda: "lloró" in browser.run("return localStorage.getItem('pybeam.history')"))
    browser.translate("Y el rey dijo.")
    wait_until(lambda: "rey" in browser.run("return localStorage.getItem('pybeam.history')"))
    browser.open()
    assert open_history(browser) == ["Y el rey dijo.", "Jesús lloró."]
    browser.click("#history-list li:nth-child(2) > button")
    browser.wait_for_result()
    assert (browser.source(), browser.text("translation")) == ("Jesús lloró.", "Jesus wept.")
    first = "return JSON.parse(localStorage.getItem('pybeam.history'))[0].source"
    wait_until(lambda: browser.run(first) == "Jesús lloró.")
    # it is deleted, letter by letter
    browser.translate("Jesús")
    wait_until(lambda: browser.text("spoken") == browser.text("translation"))
    assert open_history(browser) == ["Jesús lloró.", "Y el rey dijo."]
    browser.click("#history-list .actions button", 1)
    assert browser.texts("#history-list .quoted") == ["Jesús lloró."]
    browser.click("#delete-history")
    assert browser.text("history-list") == "There is nothing yet."
    assert browser.run("return localStorage.length") == 0
    browser.press(ESCAPE)
    assert not browser.shows("history") and browser.focused() == "open-history"


def test_history_can_be_switched_off_and_is_bounded(browser):
    open_history(browser)
    browser.click("#keep-history")
    browser.click("#close-history")
    browser.translate("Jesús lloró.")
    wait_until(lambda: browser.text("spoken") == "Jesus wept.")
    browser.open()
    assert open_history(browser) == []
    assert not browser.run("return document.getElementById('keep-history').checked")
    browser.click("#keep-history")
    kept = "it.remember('b'.repeat(50) + i, 'c'.repeat(50), {})"
    browser.module("history", f"Array.from({{length: 250}}, (_, i) => i).forEach(i => {kept})")
    entries = "JSON.parse(localStorage.getItem('pybeam.history'))"
    assert browser.run(f"return {entries}.length") == 200
    assert browser.run(f"return {entries}[0].source").endswith("b249")
    browser.module("history", "it.remember('d'.repeat(490000), 'e', {})")
    assert 1 < browser.run(f"return {entries}.length") < 200
    assert browser.run("return localStorage.getItem('pybeam.history').length") < 600_000


def test_the_translation_is_copied(browser):
    browser.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": browser.url},
    )
    browser.translate("Jesús lloró.\n\nY el rey dijo.")
    text = browser.text("translation")
    browser.click("#copy")
    wait_until(lambda: browser.text("copy") == "Copied")
    copied = browser.driver.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0])"
    )
    assert copied == text and "\n\n" in text


def test_files_are_translated_into_files(browser, tmp_path):
    (tmp_path / "film.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nJesús lloró.\n")
    (tmp_path / "page.html").write_text("<p>Jesús <b>lloró.</b></p>")
    (tmp_path / "film.pdf").write_text("?")
    browser.give(tmp_path / "film.srt")
    browser.give(tmp_path / "page.html")
    wait_until(lambda: len(browser.texts("#jobs a")) == 2, 30)
    fetched = browser.driver.execute_async_script(
        "fetch(document.querySelector('#jobs a').href).then(r => r.text()).then(arguments[0])"
    )
    assert fetched == "1\n00:00:01,000 --> 00:00:02,000\nJesus wept.\n"
    browser.click("#jobs button")
    assert len(browser.texts("#jobs li")) == 1 and browser.focused() == "open-file"
    browser.give(tmp_path / "film.pdf")
    wait_until(lambda: browser.shows("problem"))
    assert browser.text("problem-text").startswith("“film.pdf” cannot be read here. Take a file")
    browser.click("#close-problem")
    assert not browser.shows("problem")


def test_what_is_said_is_written_down(browser):
    browser.write("Jesús lloró.")
    browser.give(FIRST)
    wait_until(lambda: browser.source() == "Jesús lloró.\nfour zero seven", 30)
    wait_until(lambda: "is written down above" in browser.text("jobs"))
    browser.click("#record")
    wait_until(lambda: "0:01" in browser.text("record"))
    assert browser.run("return document.getElementById('record').ariaPressed") == "true"
    browser.click("#record")
    wait_until(lambda: "recording.webm" in browser.text("jobs"))
    wait_until(lambda: not browser.has("#jobs progress"), 30)
    assert browser.text("record") == "Speak" and not browser.shows("problem")


def test_colours_are_chosen_and_stay(browser):
    ground = "return getComputedStyle(document.body).backgroundColor"
    assert browser.run(ground) == "rgb(255, 255, 255)"
    browser.choose("theme", "dark")
    dark = browser.run(ground)
    browser.open()
    assert browser.run(ground) == dark != "rgb(255, 255, 255)"
    browser.choose("theme", "")
    browser.open(scheme="dark")
    assert browser.run(ground) == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 360, 768, 1280])
@pytest.mark.parametrize("fault", ["wider than the window", "a barrier"])
def test_no_part_of_the_page_is(browser, width, scheme, fault):
    if fault == "a barrier" and not AXE:
        pytest.skip(
            "`make docs-look` has not fetched axe-core, and `PYBEAM_AXE` names no axe.min.js"
        )
    browser.open(width, scheme)
    browser.choose("source-lang", "es")

    def check():
        if fault == "a barrier":
            assert browser.barriers() == []
        else:
            assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")

    check()
    browser.translate(TEXT)
    browser.open_alternatives(2)
    check()
    browser.press(ESCAPE)
    browser.click("#effort summary")
    browser.give(ROOT / "README.md")
    wait_until(lambda: browser.shows("problem"))
    check()
    wait_until(lambda: browser.run("return localStorage.length") == 1)
    open_history(browser)
    check()


def test_problems_are_said_in_plain_words_with_what_to_do():
    with running("--max-width", "8", PYBEAM_SERVE_API_KEYS="sesame") as process:
        browser = Browser(process.url)
        try:
            browser.driver.get(browser.url)
            wait_until(lambda: browser.shows("problem"))
            assert "wants a key" in browser.text("problem-text") and browser.shows("key")
            browser.run(
                "const e = document.getElementById('key'); e.value = 'sesame';"
                "e.dispatchEvent(new Event('change'))"
            )
            browser.translate("Jesús lloró.")
            assert browser.text("translation") == "Jesus wept." and not browser.shows("problem")
            browser.run(
                "const e = document.getElementById('width'); e.value = 16;"
                "e.dispatchEvent(new Event('input'))"
            )
            wait_until(lambda: browser.shows("problem"))
            assert "does not take this" in browser.text("problem-text")
            assert "at most 8" in browser.text("problem-detail")
            browser.write("a" * 100_001)
            wait_until(lambda: "Open a file" in browser.text("problem-text"))
            assert process.stop() == 0
            browser.write("Y el rey dijo.")
            wait_until(lambda: "does not answer" in browser.text("problem-text"))
            assert browser.shows("try-again")
        finally:
            browser.driver.quit()
