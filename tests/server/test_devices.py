"""`--device a,b`: a model that is on several devices, here twice on the CPU."""

import pytest
from fastapi.testclient import TestClient

from pybeam.cli.loading import Setup
from pybeam.cli.serve import ServeOptions, load_models
from pybeam.cli.serve import serve as command
from pybeam.server.app import build_app, build_service
from pybeam.server.metrics import Metrics
from pybeam.server.settings import Settings
from support.paths import MODEL

LINES = ["Jesús lloró.", "Y dijo Dios: Sea la luz; y fué la luz.", "En el principio."]


def translated(devices):
    values = command.make_context("serve", ["--model", str(MODEL), "--device", devices]).params
    setup = Setup.take(values)
    models, engines = load_models({"es-en": str(MODEL)}, setup, ServeOptions(engines=1))
    assert len(models["es-en"].decoders) == 1 + devices.count(",")
    metrics, settings = Metrics(), Settings()
    service = build_service(models, metrics, settings, engines=engines)
    app = build_app(service, models, metrics, settings=settings)
    with service, TestClient(app, base_url="http://localhost") as client:
        body = {"q": LINES * 4, "source": "es", "target": "en"}
        return client.post("/translate", json=body).json()["translatedText"]


@pytest.mark.slow
def test_answers_are_those_of_one_device():
    assert translated("cpu, cpu") == translated("cpu")
