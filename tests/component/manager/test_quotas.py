"""What a keypair, a group and a domain may occupy holds over all resource groups, and is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ai.backend.common.errors import LimitExceeded
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionStatus
from ai.backend.manager.identity.model import Domain, Group
from ai.backend.manager.resources.model import ResourcePreset
from ai.backend.manager.sessions.model import CreateSession, Session
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent


async def enqueue(cluster: Cluster, name: str, cpu: int = 2, **more: Any) -> Session:
    request = CreateSession(image="python", name=name, resources={"cpu": cpu, "mem": "64m"}, enqueue_only=True, **more)
    return (await cluster.manager.services.sessions.create(cluster.user, request)).session


async def settled(cluster: Cluster, session: Session) -> Session:
    """Running, or waiting with a reason."""
    async with asyncio.timeout(30):
        while True:
            now = await cluster.manager.services.sessions.get(cluster.user, str(session.id))
            is_waiting = now.status is SessionStatus.PENDING and now.status_info is not None
            if is_waiting or now.status is SessionStatus.RUNNING:
                return now
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("scope", ["keypair", "group", "domain"])
async def test_quotas_hold_over_resource_groups(cluster: Cluster, agent: FakeAgent, scope: str) -> None:
    identities, administration = cluster.manager.stores.identities, cluster.manager.services.tenants
    limit = ResourceSlot.parse({"cpu": "3"})
    if scope == "keypair":
        await administration.modify_policy(cluster.admin, None, "default", {"total_resource_slots": limit})
    elif scope == "group":
        (group,) = await identities.groups(domain_name="default", name="default")
        await identities.change(Group, group.id, total_resource_slots=limit)
    else:
        await identities.change(Domain, "default", total_resource_slots=limit)
    await cluster.manager.stores.presets.put_preset(
        ResourcePreset(name="small", resource_slots=ResourceSlot.parse({"cpu": "1"}))
    )
    await cluster.manager.stores.presets.put_preset(
        ResourcePreset(name="large", resource_slots=ResourceSlot.parse({"cpu": "2"}))
    )
    first = await settled(cluster, await enqueue(cluster, "first"))
    second = await settled(cluster, await enqueue(cluster, "second"))
    assert (first.status, second.status) == (SessionStatus.RUNNING, SessionStatus.PENDING)
    assert "3" in second.status_data["scheduler"]["message"], second.status_data
    told = await cluster.manager.services.resources.check_presets(cluster.user, group="default")
    remaining = {
        "keypair": told.quotas["keypair"].remaining,
        "group": told.quotas["group"].remaining,
        "domain": told.quotas["domain"].remaining,
    }
    assert {name: str(left["cpu"]) for name, left in remaining.items()} == {
        **dict.fromkeys(remaining, "Infinity"),
        scope: "1",
    }
    assert {preset.name: fits for preset, fits in told.presets} == {"small": True, "large": False}
    await cluster.manager.services.sessions.destroy(cluster.user, "first")
    is_running = await cluster.manager.services.writer.wait_until(
        second.id, lambda s: s.status is SessionStatus.RUNNING, timeout_s=30
    )
    assert is_running is not None


async def test_only_so_many_sessions_wait(cluster: Cluster, agent: FakeAgent) -> None:
    limits = {"max_pending_session_count": 1}
    await cluster.manager.services.tenants.modify_policy(cluster.admin, None, "default", limits)
    await enqueue(cluster, "later", starts_at="1h")
    with pytest.raises(LimitExceeded):
        await enqueue(cluster, "even-later", starts_at="1h")
