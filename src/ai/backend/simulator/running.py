"""Runs a simulated cluster from its beginning to its end, undisturbed by the machine that simulates it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from ai.backend.common.errors import BackendError
from ai.backend.simulator.cluster import Cluster
from ai.backend.simulator.world import NO_FAULTS


async def run_story(cluster: Cluster) -> None:
    """Runs users and faults, then waits for rest, ends all sessions, and fills all nodes. Raises AssertionError."""
    world = cluster.world
    await cluster.begin()
    fault_task = world.spawn(None, cluster.inject_faults()) if world.faults != NO_FAULTS else None
    watch_task = world.spawn(None, cluster.watch())
    await cluster.run_users()
    watch_task.cancel()
    if fault_task is not None:
        fault_task.cancel()
    for agent in cluster.agents:
        agent.disk.is_full = False
        agent.node.unhealthy.clear()
        agent.node.is_plugin_broken = False
    await cluster.come_to_rest()
    cluster.invariants.check_at_rest(cluster)
    cluster.rested = {session.status for session in cluster.sessions()}
    await cluster.destroy_all()
    await cluster.come_to_rest()
    cluster.invariants.check_at_end(cluster)
    await cluster.fill()
    cluster.invariants.check_at_end(cluster)


@contextmanager
def undisturbed(errors: list[str]) -> Iterator[None]:
    """Disables the garbage collector in a ``with`` block, and collects unexpected logged exceptions in ``errors``.

    Logs are not shown.
    """
    was_enabled, error_handler = gc.isenabled(), _Errors(errors)
    root = logging.getLogger("ai.backend")
    root_level, was_propagating = root.level, root.propagate
    gc.disable()
    root.setLevel(logging.ERROR)
    root.propagate = False
    root.addHandler(error_handler)
    try:
        yield
    finally:
        root.removeHandler(error_handler)
        root.setLevel(root_level)
        root.propagate = was_propagating
        if was_enabled:
            gc.enable()


_EXPECTED_ERRORS = (BackendError, OSError, TimeoutError, asyncio.CancelledError, RuntimeError)


class _Errors(logging.Handler):
    """Collects the logged exceptions that show a mistake of the program; expected errors are ignored."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, _EXPECTED_ERRORS):
            self._errors.append(f"{record.getMessage()}: {type(error).__name__}: {error}")


def run(cluster: Cluster, scenario: Callable[[], Coroutine[Any, Any, None]] | None = None) -> str:
    """Runs :func:`run_story` or another ``scenario``; returns the digest of its trace. Raises AssertionError."""
    world, errors = cluster.world, list[str]()
    world.trace("seed", cluster.seed)
    with undisturbed(errors):
        try:
            task = world.spawn(None, scenario() if scenario is not None else run_story(cluster))
            world.loop.run_until_complete(task)
        finally:
            world.loop.tear_down()
    violations = cluster.invariants.broken + errors
    if violations:
        raise AssertionError("; ".join(violations[:5]))
    return world.digest()
