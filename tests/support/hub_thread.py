"""The hub of tests in a thread of its own, for tests that run commands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.fake_hub import FakeHub, Model

TINY = {
    "README.md": b"# tiny\n\nA model that is large enough for tests.\n",
    "config.json": b'{"hidden_size": 8}\n',
    "model.safetensors": bytes(range(256)) * 1_000,
}


@contextmanager
def hub_with_tiny() -> Iterator[FakeHub]:
    """A hub with the model ``acme/tiny`` in its versions ``main`` and ``v1``."""
    hub, ready, over = FakeHub(), threading.Event(), asyncio.Event()
    model = Model(TINY)
    model.tags["v1"] = model.commit
    hub.models["acme/tiny"] = model
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with hub.serving():
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="hub", daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield hub
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
        loop.close()
