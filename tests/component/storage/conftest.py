"""A real storage proxy with both APIs on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from ai.backend.storage.main import StorageProxy
from tests.support.storage_proxy import Caller, parsed


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(force_close=True)  # none outlives a proxy that is started again
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[StorageProxy]:
    proxy = StorageProxy(parsed(tmp_path))
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
def caller(proxy: StorageProxy, http: aiohttp.ClientSession) -> Caller:
    return Caller(http, proxy.manager_url)
