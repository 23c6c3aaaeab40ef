"""Server processes for all tests that need sockets and do not stop them, and servers of administrators."""

from pathlib import Path

import httpx
import pytest

import pybeam
from pybeam.server import model_manager
from pybeam.server.auth import Keys
from pybeam.server.key_file import table_of
from pybeam.server.settings import KeyLimits
from support.administered import ADMIN, Folders, made
from support.paths import MODEL
from support.server_app import run
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


@pytest.fixture
def folder(tmp_path) -> Path:
    for width in (1, 2, 3):
        (tmp_path / "models" / f"w{width}").mkdir(parents=True)
        (tmp_path / "models" / f"w{width}" / "width").write_text(str(width))
        (tmp_path / "models" / f"w{width}" / "model.safetensors").touch()
    (tmp_path / "models" / "bad").mkdir()
    return tmp_path / "models"


@pytest.fixture
def administered(folder, tmp_path, monkeypatch):
    """Run a test on a client with an administrator's key, of a server with a loader."""
    # all that other tests have made would be looked at
    monkeypatch.setattr(model_manager, "_free", lambda: None)
    # the model is warm already, and each decoder would take its time
    monkeypatch.setattr(pybeam.Decoder, "warm_up", lambda decoder: None)
    path = tmp_path / "keys.toml"
    table = table_of("boss", "boss", KeyLimits(admin=True)) + table_of("user", "user", KeyLimits())
    path.write_text(table)

    def act(test, loader=None, **settings):
        chosen = {"model_folders": (str(folder),), "keys": Keys(path=str(path))} | settings
        model = chosen.pop("model", None) or made("first")

        async def whole(http):
            http.headers.update(ADMIN)
            return await test(http)

        return run(whole, model=model, loader=Folders() if loader is None else loader, **chosen)

    return act
