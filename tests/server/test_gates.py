"""Gates know who is inside, and when somebody was."""

from __future__ import annotations

import asyncio
import time

import pytest

from pybeam.server.gates import Gate, Gated
from support import server_app


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_model_is_in_use_until_what_has_it_ends(kind):
    """A live session may last for hours, and its model was not idle then."""
    model = server_app.served()
    seen = [model.gate.last_used]

    async def app(scope, receive, send):
        model.gate.enter(scope)
        seen.append(model.gate.last_used)
        await asyncio.sleep(0.002)
        seen.append(time.monotonic())

    asyncio.run(Gated(app, Gate())({"type": kind, "path": "/"}, None, None))
    before, begun, end = seen
    assert before < begun < end <= model.gate.last_used
    assert model.is_idle
