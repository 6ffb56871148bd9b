from collections.abc import AsyncIterator

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.session import AsyncSession
from tests.support.fake_api import ACCESS_KEY, SECRET_KEY, FakeApi, serving


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
async def endpoint(api: FakeApi) -> AsyncIterator[str]:
    async with serving(api) as url:
        yield url


@pytest.fixture
def config(endpoint: str) -> APIConfig:
    return APIConfig(endpoint=endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY)


@pytest.fixture
async def client(config: APIConfig) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(config=config) as session:
        yield session
