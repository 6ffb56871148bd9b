"""Event loops that daemons run on: asyncio's own, and uvloop's where the extra of that name is installed."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable, Mapping

from tests.support import wheels
from tests.support.skips import is_ci


def both_loops() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Returns the factories of both, for `pytest_asyncio_loop_factories` of tests that have to hold on either.

    The environment of the tests is without uvloop, so that all other tests run on what is installed by default. Where
    it can neither be imported nor fetched, asyncio's loop is the only one; under CI=true those tests fail.
    """
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if is_ci() or importlib.util.find_spec("uvloop") is not None or wheels.why_no_uvloop() is None:
        factories["uvloop"] = _uvloop
    return factories


def _uvloop() -> asyncio.AbstractEventLoop:
    if importlib.util.find_spec("uvloop") is None:
        sys.path.append(str(wheels.uvloop_folder()))
        importlib.invalidate_caches()
    from uvloop import new_event_loop

    loop: asyncio.AbstractEventLoop = new_event_loop()
    return loop
