"""The service gateway passes bytes on asyncio's loop and on uvloop's, which agents take where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio

from tests.component.agent.conftest import Bench
from tests.support.event_loops import both_loops
from tests.support.gateway_clients import ServingRuntime


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return both_loops()


@pytest_asyncio.fixture
async def runtime(bench: Bench, plane: str) -> AsyncIterator[ServingRuntime]:
    bench.runtime = runtime = ServingRuntime()
    yield runtime
    await runtime.close_services()
