"""Reading and changing the shared configuration."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from ai.backend.common.errors import Forbidden, InvalidInput
from ai.backend.common.ids import AccessKey, DomainName, UserId
from ai.backend.common.states import UserRole
from ai.backend.infra.config_store import MemoryConfigStore
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.system.configuration import ConfigService


def caller(role: UserRole = UserRole.SUPERADMIN) -> Caller:
    return Caller(
        user_id=UserId(UUID(int=1)),
        email="a@local",
        username="a",
        role=role,
        domain_name=DomainName("default"),
        access_key=AccessKey("AK"),
        is_admin=role is not UserRole.USER,
        resource_policy="default",
        rate_limit=0,
    )


async def test_objects_are_set_below_the_key_and_come_back_nested() -> None:
    service = ConfigService(MemoryConfigStore())
    await service.set(caller(), "config", {"plugins": {"mock": {"unit_proc": 4, "on": True}}, "api/x": "y"})
    await service.set(caller(), "config/plugins", "itself")
    assert await service.get(caller(), "config/plugins/mock/unit_proc") == "4"
    assert await service.get(caller(), "config", prefix=True) == {
        "plugins": {"": "itself", "mock": {"on": "true", "unit_proc": "4"}},
        "api": {"x": "y"},
    }
    assert await service.get(caller(), "config/none") is None
    assert await service.delete(caller(), "config/plugins", prefix=True) == 3
    assert await service.get(caller(), "", prefix=True) == {"config": {"api": {"x": "y"}}}


@pytest.mark.parametrize("key", ["", "/", "//"])
async def test_the_root_is_not_deleted(key: str) -> None:
    store = MemoryConfigStore()
    await store.put_many({"config/api/x": "y"})
    for prefix in (False, True):
        with pytest.raises(InvalidInput):
            await ConfigService(store).delete(caller(), key, prefix=prefix)
    assert await store.get_prefix("") == {"config/api/x": "y"}


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"k": value}
    return value


@pytest.mark.parametrize("value", [None, [1], {}, {"a": None}, nested(40), {"a//b": "x"}])
async def test_what_is_no_value_changes_nothing(value: Any) -> None:
    store = MemoryConfigStore()
    with pytest.raises(InvalidInput):
        await ConfigService(store).set(caller(), "", {"good": "1", "bad": value} if value != {} else value)
    assert await store.get_prefix("") == {}


@pytest.mark.parametrize("role", [UserRole.USER, UserRole.ADMIN, UserRole.MONITOR])
async def test_only_superadmins_may(role: UserRole) -> None:
    service = ConfigService(MemoryConfigStore())
    with pytest.raises(Forbidden):
        await service.get(caller(role), "a")
    with pytest.raises(Forbidden):
        await service.set(caller(role), "a", "1")
    with pytest.raises(Forbidden):
        await service.delete(caller(role), "a")
