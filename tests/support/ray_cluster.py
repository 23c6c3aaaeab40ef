"""Ray clusters on the loopback address, each node of which is a few processes of this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = {
    # nothing is reported to anybody
    "RAY_USAGE_STATS_ENABLED": "0",
    # despite its name the only switch that makes all of Ray's processes listen at 127.0.0.1
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # a busy machine needs more than 5 seconds until it listens
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    # a lost node is noticed within seconds
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
}
# read when Ray is imported
os.environ.update(ENVIRONMENT)

STORE_BYTES = 80 << 20
# Ray warns about itself
MARKS = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@contextlib.contextmanager
def cluster(num_nodes: int = 2, num_cpus: int = 1) -> Iterator[Any]:
    """A cluster of so many nodes beside the head, which has no CPUs; this process is connected to it."""
    from ray.cluster_utils import Cluster

    import ray

    node: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 0})
    try:
        for _ in range(num_nodes):
            found.add_node(num_cpus=num_cpus, **node)
        ray.init(address=found.address, log_to_driver=False, configure_logging=False)
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def workers(node: Any, name: str) -> list[int]:
    """The processes of a node in which an actor of a class with this name lives."""
    [raylet] = node.all_processes["raylet"]
    children = Path(f"/proc/{raylet.process.pid}/task/{raylet.process.pid}/children").read_text()
    found = []
    for pid in map(int, children.split()):
        with contextlib.suppress(FileNotFoundError):
            if f"ray::{name}" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found
