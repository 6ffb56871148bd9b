"""Sessions that require what their devices are, from the request to the agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import InvalidInput, NotFound, UnsupportedResource
from ai.backend.common.states import SessionStatus
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.common.wire.reports import AgentReport, PluginReport
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.sessions.model import CreateSession, Session
from tests.component.manager.conftest import SETTINGS, Cluster, start_manager
from tests.component.manager.fakes import FakeAgent


@dataclass
class GpuAgent(FakeAgent):
    """Has one GPU of each given capability and model."""

    gpus: list[tuple[str, str]] = field(default_factory=list)
    unhealthy: set[str] = field(default_factory=set)
    namespaces: list[dict[str, Any]] = field(
        default_factory=lambda: [
            {"namespace": "nvidia", "features": [{"name": "compute_capability", "match_mode": "minimum"}]}
        ]
    )

    def __post_init__(self) -> None:
        self.slots = {"cpu": "8", "mem": "17179869184", "cuda.device": str(len(self.gpus))}

    def report(self, **changes: Any) -> AgentReport:
        devices = [
            {
                "device_name": "cuda",
                "device_id": f"gpu-{i}",
                "hw_location": "",
                "model_name": model,
                "health": "unhealthy" if f"gpu-{i}" in self.unhealthy else "healthy",
                "slots": [{"slot_name": "cuda.device", "slot_type": "count", "amount": "1"}],
                "variant_properties": [{"namespace": "nvidia", "feature": "compute_capability", "value": capability}],
            }
            for i, (capability, model) in enumerate(self.gpus)
        ]
        plugin = PluginReport(
            name="cuda", version="1", alloc_map={"kind": "discrete"}, variant_namespaces=self.namespaces
        )
        return super().report(**{"devices": devices, "plugins": [plugin], **changes})


def request(*requirements: str, **values: Any) -> CreateSession:
    resources = {"cuda.device": 1}
    return CreateSession(
        image="python", variant_requirements=requirements, **{"resources": resources, "max_wait_s": 10, **values}
    )


@pytest.fixture
async def old(cluster: Cluster) -> GpuAgent:
    agent = GpuAgent(agent_id="i-01", gpus=[("8.0", "A100"), ("8.0", "A100")])
    await cluster.join(agent)
    return agent


@pytest.fixture
async def new(cluster: Cluster) -> GpuAgent:
    agent = GpuAgent(agent_id="i-02", gpus=[("8.9", "L4"), ("9.0", "H100")])
    await cluster.join(agent)
    return agent


def waits_for(session: Session) -> tuple[str | None, str]:
    return session.status_info, session.status_data["scheduler"]["message"]


@pytest.mark.parametrize(
    ("requirement", "agent", "device"),
    [
        ("nvidia::compute_capability::9.0", "i-02", "gpu-1"),
        ("nvidia::compute_capability::8.5", "i-02", "gpu-0"),
        (" cuda::model::H100 ", "i-02", "gpu-1"),
        ("cuda::model::A100", "i-01", "gpu-0"),
    ],
)
async def test_a_requirement_goes_from_the_request_to_the_agent(
    cluster: Cluster, old: GpuAgent, new: GpuAgent, requirement: str, agent: str, device: str
) -> None:
    session = (await cluster.manager.services.sessions.create(cluster.user, request(requirement))).session
    assert (session.status, session.main.agent) == (SessionStatus.RUNNING, agent)
    assert session.variant_requirements == (requirement.strip(),)
    (spec,) = [*old.created, *new.created]
    assert spec.variant_requirements == [requirement.strip()]
    assert spec.devices["cuda.device"] == {device: "1"}


async def test_it_is_kept_over_a_restart_of_manager_and_session(
    cluster: Cluster, old: GpuAgent, new: GpuAgent, tmp_path: Path
) -> None:
    sessions = cluster.manager.services.sessions
    session = (await sessions.create(cluster.user, request("cuda::model::H100"))).session
    back = await sessions.restart(cluster.user, str(session.id))
    assert (back.variant_requirements, back.main.agent) == (("cuda::model::H100",), "i-02")
    manager, database = await start_manager(tmp_path / "manager.db", MemoryLink(), SETTINGS)
    read = await manager.services.sessions.get(cluster.user, str(session.id))
    assert read.variant_requirements == ("cuda::model::H100",)
    await manager.stop()
    await database.close()


async def test_what_nobody_has_waits_with_what_there_is_and_starts_when_it_comes(
    cluster: Cluster, old: GpuAgent
) -> None:
    sessions = cluster.manager.services.sessions
    waiting = await sessions.create(cluster.user, request("nvidia::compute_capability::9.0", max_wait_s=0.3))
    other = await sessions.create(cluster.user, request(resources={"cuda.device": 2}))
    assert other.status == "RUNNING", "it does not hold back those behind it"
    assert waiting.status == "TIMEOUT"
    told = await sessions.get(cluster.user, str(waiting.session.id))
    assert waits_for(told) == (
        "no-matching-device",
        (
            "no agent has a device with nvidia::compute_capability >= 9.0; "
            "of nvidia::compute_capability there is 8.0 (cuda on i-01)"
        ),
    )
    await cluster.join(GpuAgent(agent_id="i-02", gpus=[("9.0", "H100")]))
    placed = await cluster.manager.services.writer.wait_until(
        waiting.session.id, lambda s: s.status is SessionStatus.RUNNING, timeout_s=8
    )
    assert placed is not None
    assert placed.main.agent == "i-02"
    assert placed.status_info is None


async def test_devices_that_changed_meanwhile_send_the_session_back(cluster: Cluster, new: GpuAgent) -> None:
    """The manager learns only after the refusal that the planned device is another one now."""

    def refuse(spec: KernelSpec) -> UnsupportedResource:
        new.gpus = [("8.0", "A100")]
        new._spawn(new.beat())
        message = "no device of cuda.device has cuda::model = H100; this node has A100"
        return UnsupportedResource(message, data={"requirements": spec.variant_requirements})

    new.refuse = refuse
    waiting = (
        await cluster.manager.services.sessions.create(cluster.user, request("cuda::model::H100", enqueue_only=True))
    ).session
    wait_until = cluster.manager.services.writer.wait_until
    back = await wait_until(waiting.id, lambda s: s.status_info == "no-matching-device", timeout_s=8)
    assert back is not None
    assert back.status is SessionStatus.PENDING
    assert "of cuda::model there is A100 (cuda on i-02)" in back.status_data["scheduler"]["message"]
    await cluster.join(GpuAgent(agent_id="i-03", gpus=[("9.0", "H100")]))
    placed = await wait_until(waiting.id, lambda s: s.status is SessionStatus.RUNNING, timeout_s=8)
    assert placed is not None
    assert placed.main.agent == "i-03"


async def test_a_namespace_that_never_appeared_waits_the_same(cluster: Cluster, old: GpuAgent) -> None:
    reply = await cluster.manager.services.sessions.create(
        cluster.user, request("habana::generation::gaudi3", max_wait_s=1)
    )
    told = await cluster.manager.services.sessions.get(cluster.user, str(reply.session.id))
    assert waits_for(told) == (
        "no-matching-device",
        (
            "no agent has a device with habana::generation = gaudi3; "
            "no requested slot is of the namespace habana; there are cuda, nvidia"
        ),
    )


@pytest.mark.parametrize(
    "requirements",
    [
        ("compute_capability",),
        ("nvidia::compute_capability",),
        ("::compute_capability::8.0",),
        ("nvidia:: ::8.0",),
        ("nvidia::x::" + "9" * 129,),
        ("nvidia::x::\x1b[31m",),
        ("nvidia::x::a\nb",),
        tuple(f"nvidia::x::{n}" for n in range(33)),
    ],
)
async def test_a_malformed_requirement_names_its_field(
    cluster: Cluster, old: GpuAgent, requirements: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await cluster.manager.services.sessions.create(cluster.user, request(*requirements))
    assert list(caught.value.data) == ["config.variant_requirements"]
    assert caught.value.message.isprintable()


async def test_a_requirement_that_is_said_twice_counts_once(cluster: Cluster, old: GpuAgent) -> None:
    reply = await cluster.manager.services.sessions.create(cluster.user, request(*["cuda::model::A100"] * 2))
    assert reply.session.variant_requirements == ("cuda::model::A100",)


async def test_namespaces_that_cannot_be_read_leave_exact_comparison(cluster: Cluster) -> None:
    agent = GpuAgent(agent_id="i-01", gpus=[("9.0", "H100")])
    agent.namespaces = [{"namespace": 7}]
    await cluster.join(agent)
    sessions = cluster.manager.services.sessions
    assert (
        await sessions.create(cluster.user, request("nvidia::compute_capability::8.0", max_wait_s=0.3))
    ).status == "TIMEOUT"
    assert (await sessions.create(cluster.user, request("nvidia::compute_capability::9.0"))).status == "RUNNING"


async def test_the_list_of_what_there_is(cluster: Cluster, old: GpuAgent, new: GpuAgent) -> None:
    new.unhealthy = {"gpu-0"}
    await new.beat()
    found = await cluster.manager.services.resources.variants(cluster.user)
    assert [(str(v.property), v.match_mode.value, v.device_names, dict(v.devices)) for v in found] == [
        ("cuda::model::A100", "exact", ("cuda",), {"default": 2}),
        ("cuda::model::H100", "exact", ("cuda",), {"default": 1}),
        ("nvidia::compute_capability::8.0", "minimum", ("cuda",), {"default": 2}),
        ("nvidia::compute_capability::9.0", "minimum", ("cuda",), {"default": 1}),
    ]
    with pytest.raises(NotFound):
        await cluster.manager.services.resources.variants(cluster.user, "elsewhere")


async def test_a_session_waits_where_all_devices_are_tainted(cluster: Cluster) -> None:
    @dataclass
    class TaintedAgent(GpuAgent):
        def report(self, **changes: Any) -> AgentReport:
            devices = super().report().devices
            taint = {"namespace": "taint", "feature": "key", "value": "burn-in"}
            tainted = [{**each, "variant_properties": [*each["variant_properties"], taint]} for each in devices]
            return super().report(**{"devices": tainted, **changes})

    await cluster.join(TaintedAgent(agent_id="i-01", gpus=[("8.0", "A100")]))
    sessions = cluster.manager.services.sessions
    made = (await sessions.create(cluster.user, request(enqueue_only=True))).session
    explained = await cluster.manager.services.explanations.explain_session(cluster.user, str(made.id))
    assert "devices for it are tainted: gpu-0 on i-01 (burn-in)" in explained.message
    tolerant = CreateSession(
        image="python", resources={"cuda.device": 1}, device_requests=('tolerates("burn-in")',), max_wait_s=10
    )
    assert (await sessions.create(cluster.user, tolerant)).session.status is SessionStatus.RUNNING
