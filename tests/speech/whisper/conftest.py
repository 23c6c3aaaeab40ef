"""The tiny random Whisper that tests share."""

from __future__ import annotations

import pytest

import pybeam
from support.tiny_whisper import save_whisper


@pytest.fixture(scope="package")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("whisper")
    save_whisper(path)
    return path


@pytest.fixture(scope="package")
def model(directory):
    return pybeam.load_model(directory)
