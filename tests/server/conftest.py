"""Server processes for all tests that need sockets and do not stop them."""

import httpx
import pytest

from support.paths import MODEL
from support.server_process import SPEECH_MODEL, running, wait_until


@pytest.fixture(scope="session")
def server():
    limits = ("--max-body", "20000", "--body-timeout", "0.5", "--max-connections-per-client", "3")
    with running(*limits, is_ready=False) as process:
        wait_until(lambda: process.url, seconds=60)
        # what it says while it starts
        paths = ("/health", "/ready", "/metrics", "/translate", "/v1/models")
        process.early = {path: httpx.get(process.url + path, timeout=60) for path in paths}
        process.until_ready()
        yield process
        assert process.process.poll() is None, "".join(process.lines)[-5000:]
        assert process.stop() == 0


@pytest.fixture(scope="session")
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def whole_browser():
    """Chromium at a server that translates there and back, and hears numbers."""
    pytest.importorskip("selenium.webdriver")
    from support import browser as chromium

    if not (chromium.CHROMIUM and chromium.DRIVER):
        pytest.skip("needs `apt-get install chromium chromium-driver`")
    with running(models=(MODEL, f"bible-en-es={MODEL}", SPEECH_MODEL)) as process:
        browser = chromium.Browser(process.url)
        yield browser
        browser.driver.quit()
        assert process.stop() == 0


@pytest.fixture
def browser(whole_browser):
    """A fresh page, which remembers nothing; no script of it may complain."""
    whole_browser.open()
    whole_browser.run("localStorage.clear()")
    whole_browser.open()
    whole_browser.choose("source-lang", "es")
    yield whole_browser
    assert not whole_browser.driver.get_log("browser")
