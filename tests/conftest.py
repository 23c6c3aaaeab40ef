"""Options of the whole suite; its fixtures stand in `support/fixtures.py`.

The process that hands tests out to workers runs none, so it loads neither torch nor the library.
"""

from __future__ import annotations

import os
import signal
import threading

import pytest

# before the library is loaded, and for the processes that tests start
os.environ.setdefault("PYBEAM_POISON", "1")
# no test asks the real hub
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Hypothesis would load trio, which something has installed
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    backends = ("all", "reference", "native", "triton")
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu")
    parser.addoption("--backend", choices=backends, default="all")
    parser.addoption("--unthinned", action="store_true", help="no case is slow but those marked so")
    parser.addoption("--minutes", type=float, help="skip the tests that would begin later")


def pytest_configure(config: pytest.Config) -> None:
    if threading.current_thread() is threading.main_thread():
        # a shell that starts this in the background has it ignore Ctrl-C, by which `make` stops it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--device") == "cpu":
        # "auto" is the CPU then, in programs that tests start, too
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # a process that lists tests has no workers, whatever their number
    is_listing = config.option.collectonly or config.option.showfixtures
    has_workers = config.getoption("tx", None) and not is_listing
    has_workers = has_workers and not hasattr(config, "workerinput")
    config.pluginmanager.import_plugin("support.workers" if has_workers else "support.fixtures")
