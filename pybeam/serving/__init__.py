"""A service around decoders: any number of callers, deadlines, priorities, fair shares, and bounds."""

from pybeam.serving.answers import (
    BestSoFar,
    Certain,
    Cost,
    Listener,
    ServedResult,
    ServiceStatus,
    Times,
)
from pybeam.serving.errors import (
    DeadlineExceeded,
    EngineCrashed,
    EngineStalled,
    QueueFull,
    ServiceClosed,
)
from pybeam.serving.events import ServedStream
from pybeam.serving.service import Service

__all__ = [
    "BestSoFar",
    "Certain",
    "Cost",
    "DeadlineExceeded",
    "EngineCrashed",
    "EngineStalled",
    "Listener",
    "QueueFull",
    "ServedResult",
    "ServedStream",
    "Service",
    "ServiceClosed",
    "ServiceStatus",
    "Times",
]
