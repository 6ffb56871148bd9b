"""Event loops that daemons run on: asyncio's own, and uvloop's where the extra of that name is installed."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.skips import is_ci

_FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "uvloop"


def both_loops() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Returns the factories of both, for `pytest_asyncio_loop_factories` of tests that have to hold on either.

    The environment of the tests is without uvloop, so that all other tests run on what is installed by default.
    """
    return {"asyncio": asyncio.new_event_loop, "uvloop": _uvloop}


def _uvloop() -> asyncio.AbstractEventLoop:
    """Makes a loop of uvloop, which CI fetches into a folder. Skips the test where it is not installed otherwise."""
    if importlib.util.find_spec("uvloop") is None:
        if not (_FOLDER / "uvloop").is_dir():
            _fetch()
        sys.path.append(str(_FOLDER))
        importlib.invalidate_caches()
    from uvloop import new_event_loop

    loop: asyncio.AbstractEventLoop = new_event_loop()
    return loop


def _fetch() -> None:
    if not is_ci():
        pytest.skip("binary: uvloop is not installed (the extra of that name)")
    has_pip = importlib.util.find_spec("pip") is not None
    installer = [sys.executable, "-m", "pip"] if has_pip else ["uv", "pip"]
    subprocess.run([*installer, "install", "--quiet", "--target", str(_FOLDER), "uvloop"], check=True)
