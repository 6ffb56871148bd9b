"""Sessions that ask for devices by expressions, from the request to the agent."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import BackendError, InsufficientResource, InvalidInput, LimitExceeded
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.sessions.model import CreateSession, KernelRole
from tests.component.manager.conftest import SETTINGS, Cluster, start_manager
from tests.component.manager.test_variants import GpuAgent, waits_for


def request(*device_requests: str, **values: Any) -> CreateSession:
    given = {"resources": {"cuda.device": 1}, "max_wait_s": 10, **values}
    return CreateSession(image="python", device_requests=device_requests, **given)


@pytest.fixture
async def old(cluster: Cluster) -> GpuAgent:
    agent = GpuAgent(agent_id="i-01", gpus=[("8.0", "A100"), ("8.0", "A100")])
    await cluster.join(agent)
    return agent


async def test_alternatives_go_from_the_request_to_the_agent(cluster: Cluster, old: GpuAgent, tmp_path: Path) -> None:
    sessions = cluster.manager.services.sessions
    alternatives = ('model == "H100"', 'model == "A100" && compute_capability >= 8.0')
    session = (await sessions.create(cluster.user, request(*alternatives))).session
    assert (session.status, session.main.agent) == (SessionStatus.RUNNING, "i-01")
    (spec,) = old.created
    assert spec.device_requests == list(alternatives)
    await cluster.join(GpuAgent(agent_id="i-02", gpus=[("9.0", "H100")]))
    session = (await sessions.create(cluster.user, request(*alternatives))).session
    assert session.main.agent == "i-02", "the first alternative is there now"
    manager, database = await start_manager(tmp_path / "manager.db", MemoryLink(), SETTINGS)
    read = await manager.services.sessions.get(cluster.user, str(session.id))
    assert read.device_requests == alternatives
    await manager.stop()
    await database.close()


async def test_the_wait_says_how_many_devices_there_are(cluster: Cluster, old: GpuAgent) -> None:
    sessions = cluster.manager.services.sessions
    await sessions.create(cluster.user, request("compute_capability >= 8.0", resources={"cuda.device": 2}))
    waiting = await sessions.create(cluster.user, request("compute_capability >= 8.0", max_wait_s=0.3))
    reason, message = waits_for(await sessions.get(cluster.user, str(waiting.session.id)))
    assert reason == "insufficient-resource"
    assert message.endswith("2 of 2 devices have compute_capability >= 8.0, none of them is free")


@pytest.mark.parametrize(
    ("device_requests", "problem"),
    [
        (("memory >=",), "the expression ends too early at column 10"),
        (("memory >= 1g", "open('/etc')"), "alternative 2: there is no function open"),
        (("memory >= 1g\n",), "does not print at column 13"),
        (("(" * 2048,), "ends too early at column 2049"),
        (tuple(f"units >= {n}" for n in range(9)), "8 alternative device requests at most"),
    ],
)
async def test_a_malformed_request_names_field_and_column(
    cluster: Cluster, old: GpuAgent, device_requests: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await cluster.manager.services.sessions.create(cluster.user, request(*device_requests))
    assert "config.device_requests" in caught.value.data
    assert problem in caught.value.message
    assert caught.value.message.isprintable()


async def test_a_request_without_an_accelerator_is_refused(cluster: Cluster, old: GpuAgent) -> None:
    with pytest.raises(InvalidInput, match="concern accelerators"):
        await cluster.manager.services.sessions.create(
            cluster.user, request("memory >= 1g", resources={"cpu": 1, "mem": "1g"})
        )


# ---- amounts

AMOUNTS = (
    'model == "H100" && amount("cuda.device", 1)',
    'model == "A100" && amount("cuda.device", 2)',
    'model == "T4" && amount("cuda.device", 4)',
)


def gpus_of(slots: Mapping[str, Any]) -> Decimal:
    return Decimal(slots["cuda.device"])


async def occupied(cluster: Cluster) -> dict[str, Decimal]:
    return {agent.id: gpus_of(agent.occupied_slots) for agent in await cluster.manager.stores.agents.agents()}


async def test_what_is_counted_is_the_amount_of_the_chosen_alternative(
    cluster: Cluster, old: GpuAgent, tmp_path: Path
) -> None:
    services, stores = cluster.manager.services, cluster.manager.stores
    session = (await services.sessions.create(cluster.user, request(*AMOUNTS, resources={}))).session
    assert (session.status, session.main.agent, session.device_requests) == (SessionStatus.RUNNING, "i-01", AMOUNTS)
    assert gpus_of(session.requested_slots) == 4, "what it asks for"
    assert gpus_of(session.main.requested_slots) == gpus_of(session.main.occupied_slots) == 2
    (spec,) = old.created
    assert (spec.slots["cuda.device"], set(spec.devices["cuda.device"])) == ("2", {"gpu-0", "gpu-1"})
    assert await occupied(cluster) == {"i-01": 2}
    assert gpus_of(await stores.sessions.occupied(access_key=cluster.user.access_key)) == 2

    waiting = (await services.sessions.create(cluster.user, request(*AMOUNTS, resources={}, max_wait_s=0.3))).session
    reason, message = waits_for(await services.sessions.get(cluster.user, str(waiting.id)))
    assert reason == "insufficient-resource"
    assert message == (
        'needs 1 cpu, 2 cuda.device, 64m mem on one node; 2 of 2 devices have model == "A100", none of them is free'
    )
    assert gpus_of(waiting.main.requested_slots) == 4

    manager, database = await start_manager(tmp_path / "manager.db", MemoryLink(), SETTINGS)
    read = await manager.services.sessions.get(cluster.user, str(session.id))
    assert gpus_of(read.main.requested_slots) == gpus_of(read.main.occupied_slots) == 2
    assert gpus_of((await manager.services.sessions.get(cluster.user, str(waiting.id))).main.requested_slots) == 4
    assert (await manager.stores.sessions.audit()).drift == {}
    await manager.stop()
    await database.close()

    new = GpuAgent(agent_id="i-02", gpus=[("9.0", "H100"), ("9.0", "H100")])
    await cluster.join(new)
    started = await services.writer.wait_until(waiting.id, lambda s: s.status is SessionStatus.RUNNING, timeout_s=30)
    assert started is not None
    assert (str(started.main.agent), gpus_of(started.main.requested_slots)) == ("i-02", Decimal(1))
    assert await occupied(cluster) == {"i-01": 2, "i-02": 1}
    restarted = await services.sessions.restart(cluster.user, str(session.id))
    assert gpus_of(restarted.main.occupied_slots) == 2
    assert await occupied(cluster) == {"i-01": 2, "i-02": 1}
    for each in (session, waiting):
        await services.sessions.destroy(cluster.user, str(each.id))
    assert await occupied(cluster) == {"i-01": 0, "i-02": 0}
    ended = await stores.sessions.get(session.id)
    assert ended is not None
    assert gpus_of(ended.main.requested_slots) == 2, "usage counts what it had"


async def test_a_failed_start_waits_for_all_alternatives_again(cluster: Cluster, old: GpuAgent) -> None:
    tried: list[KernelSpec] = []

    def refuse(spec: KernelSpec) -> BackendError:
        tried.append(spec)
        return InsufficientResource("not now")

    await cluster.join(GpuAgent(agent_id="i-02", gpus=[("9.0", "H100")], refuse=refuse))
    session = (
        await cluster.manager.services.sessions.create(cluster.user, request(*AMOUNTS, resources={}, max_wait_s=30))
    ).session
    assert [gpus_of(spec.slots) for spec in tried] == [1], "the preferred alternative was tried once"
    assert (session.status, session.main.agent) == (SessionStatus.RUNNING, "i-01")
    assert gpus_of(session.main.requested_slots) == gpus_of(session.main.occupied_slots) == 2
    assert await occupied(cluster) == {"i-01": 2, "i-02": 0}


async def test_quotas_count_the_largest_alternative(cluster: Cluster, old: GpuAgent) -> None:
    sessions, tenants = cluster.manager.services.sessions, cluster.manager.services.tenants

    async def limit(amount: str) -> None:
        values = {"total_resource_slots": ResourceSlot.parse({"cuda.device": amount})}
        await tenants.modify_policy(cluster.admin, None, "default", values)

    await limit("3")
    with pytest.raises(LimitExceeded, match=r"Your policy allows 3 of cuda\.device in all; the session needs 4"):
        await sessions.create(cluster.user, request(*AMOUNTS, resources={}))
    await limit("5")
    first = (await sessions.create(cluster.user, request(*AMOUNTS, resources={}))).session
    assert gpus_of(first.occupying_slots) == 2
    await cluster.join(GpuAgent(agent_id="i-02", gpus=[("9.0", "H100")] * 3))
    second = (await sessions.create(cluster.user, request(*AMOUNTS, resources={}, max_wait_s=0.3))).session
    reason, message = waits_for(await sessions.get(cluster.user, str(second.id)))
    assert reason == "quota-exceeded"
    assert "uses 2 cuda.device already; this session needs 4 cuda.device" in message
    third = (await sessions.create(cluster.user, request(AMOUNTS[0], resources={}))).session
    assert (third.status, gpus_of(third.occupying_slots)) == (SessionStatus.RUNNING, Decimal(1))


async def test_sessions_that_wait_count_with_the_largest_alternative(cluster: Cluster, old: GpuAgent) -> None:
    limits = {"max_pending_session_resource_slots": ResourceSlot.parse({"cuda.device": "7"})}
    await cluster.manager.services.tenants.modify_policy(cluster.admin, None, "default", limits)
    later = request(*AMOUNTS, resources={}, starts_at="1h", max_wait_s=0, enqueue_only=True)
    await cluster.manager.services.sessions.create(cluster.user, later)
    with pytest.raises(LimitExceeded, match=r"may ask for 7 of cuda\.device together"):
        await cluster.manager.services.sessions.create(cluster.user, replace(later, name="other"))


async def test_an_alternative_without_an_amount_takes_that_of_the_resources(cluster: Cluster, old: GpuAgent) -> None:
    sessions = cluster.manager.services.sessions
    alternatives = ('model == "H100" || model == "H200"', 'model == "A100" && amount("cuda.device", 2)')
    session = (await sessions.create(cluster.user, request(*alternatives, resources={"cuda.device": 1}))).session
    assert session.device_requests == (
        '(model == "H100" || model == "H200") && amount("cuda.device", 1)', alternatives[1],
    )  # fmt: skip
    assert gpus_of(session.main.occupied_slots) == 2
    assert [spec.device_requests for spec in old.created] == [list(session.device_requests)]


@pytest.mark.parametrize(
    ("device_requests", "resources", "problem"),
    [
        (AMOUNTS, {"cuda.device": 3}, "the resources ask for 3 cuda.device, which no alternative takes"),
        ((AMOUNTS[0], 'model == "A100"'), {}, "alternative 2 says no amount, and the resources have no cuda.device"),
        (('amount("rocm.device", 1)',), {}, "No agent has ever offered the resource slot 'rocm.device'"),
        (('amount("mem", 1g)',), {"cuda.device": 1}, "mem is none at column 8"),
        (('amount("cuda.device", 0)',), {}, "an amount is more than zero"),
        (('amount("cuda.device", 1) && amount("cuda.device", 2)',), {}, "two amounts of cuda.device"),
        (('amount("cuda.device", 7)', 'amount("cuda.device", 9)'), {}, "lacks cuda.device (5 short)"),
    ],
)
async def test_amounts_that_contradict_are_refused(
    cluster: Cluster, old: GpuAgent, device_requests: tuple[str, ...], resources: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BackendError) as caught:
        await cluster.manager.services.sessions.create(cluster.user, request(*device_requests, resources=resources))
    assert problem in caught.value.message
    assert {"config.device_requests", "config.resources"} & caught.value.data.keys()


async def test_one_alternative_that_fits_is_enough(cluster: Cluster, old: GpuAgent) -> None:
    alternatives = ('amount("cuda.device", 7)', 'amount("cuda.device", 1.5)', 'amount("cuda.device", 2)')
    session = (
        await cluster.manager.services.sessions.create(cluster.user, request(*alternatives, resources={}))
    ).session
    assert gpus_of(session.main.occupied_slots) == 2


async def test_roles_that_request_the_slot_take_the_amount(cluster: Cluster, old: GpuAgent) -> None:
    def role(name: str, **resources: Any) -> KernelRole:
        return KernelRole(name=name, replicas=1, image="python", resources={"cpu": 1, **resources})

    roles = (role("main"), role("worker", **{"cuda.device": 4}))
    asked = request(*AMOUNTS, resources=None, cluster_size=2, roles=roles)
    session = (await cluster.manager.services.sessions.create(cluster.user, asked)).session
    assert [gpus_of(kernel.occupied_slots) for kernel in session.kernels] == [0, 2]
    assert gpus_of(session.requested_slots) == 0
    uneven = (*roles, role("other", **{"cuda.device": 1}))
    with pytest.raises(InvalidInput, match="of which the roles of the session request different ones"):
        await cluster.manager.services.sessions.create(
            cluster.user, replace(asked, roles=uneven, cluster_size=3, name="uneven")
        )
