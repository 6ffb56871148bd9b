"""Converts stored agents, sessions and claims into the input of the scheduler.

Only :class:`DeviceReader` has state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal

from ai.backend.common.devices import DeviceHealth, VariantProperty
from ai.backend.common.ids import SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, SessionStatus, SessionType
from ai.backend.core.scheduling import snapshot as core
from ai.backend.core.scheduling.options import Preemption
from ai.backend.manager.agents import capabilities
from ai.backend.manager.agents.model import Agent, KernelOccupancy
from ai.backend.manager.resources.quotas import quota_names
from ai.backend.manager.scheduling.claims import NamedClaims, add_claim
from ai.backend.manager.sessions.model import Session

log = logging.getLogger(__name__)
NO_CLAIMS = NamedClaims()


def agent_view(agent: Agent, holdings: Iterable[KernelOccupancy], devices: capabilities.DeviceReader) -> core.AgentView:
    """Converts an agent to the form that the scheduler takes.

    Slots of healthy devices that the agent does not offer are reserved.
    """
    plugins = devices.plugins_of(agent)
    healthy_amounts: dict[str, Decimal] = {}
    for plugin in plugins:
        for device in plugin.devices:
            for slot in device.slots if device.health is DeviceHealth.HEALTHY else ():
                healthy_amounts[slot.slot_name] = healthy_amounts.get(slot.slot_name, Decimal(0)) + slot.amount
    reserved_slots = ResourceSlot(
        {
            name: quantity - agent.available_slots[name]
            for name, quantity in healthy_amounts.items()
            if quantity > agent.available_slots[name]
        }
    )
    return core.AgentView(
        agent_id=agent.id,
        architecture=agent.architecture,
        plugins=plugins,
        generation=agent.generation,
        held=tuple(
            core.HeldKernel(
                kernel_id=holding.kernel_id,
                slots=holding.slots,
                devices=capabilities.to_allocation(holding.devices),
                device_requests=holding.device_requests,
                is_claim=holding.is_claim,
            )
            for holding in holdings
        ),
        is_schedulable=agent.status is AgentStatus.ALIVE and agent.schedulable,
        images=frozenset(image.name for image in agent.images),
        features=capabilities.features_of(agent),
        location=agent.location,
        kernel_limit=agent.kernel_limit,
        reserved=reserved_slots,
    )


def scope_of(session: Session) -> tuple[str, str, str]:
    """Returns the scope of a session: domain, project, user."""
    return session.domain_name, str(session.group_id), str(session.user_id)


def scopes_and_slots(
    holdings: Iterable[KernelOccupancy], owners: Mapping[SessionId, Session]
) -> list[tuple[tuple[str, str, str], ResourceSlot]]:
    """Returns the scope and the slots of each kernel and device claim in ``holdings``.

    Kernels whose session is unknown are left out.
    """
    scopes = {session_id: scope_of(session) for session_id, session in owners.items()}
    return [
        (scope, holding.slots)
        for holding in holdings
        if (scope := holding.scope or scopes.get(holding.session_id)) is not None
    ]


def running_sessions(
    sessions: Iterable[Session], *, since: datetime, preemption: Preemption
) -> tuple[core.RunningSession, ...]:
    """Converts sessions that occupy slots to the scheduler's form, marking the sessions that may be preempted.

    A session may be preempted if it has run since ``since`` or longer, unless its resource options say ``preemptible:
    false``. Only a batch session can start over; see :class:`Preemption`.
    """
    default_restartable = "true" if preemption.mode == "reschedule" else "false"
    return tuple(
        core.RunningSession(
            session_id=session.id,
            priority=session.priority,
            started_at=session.started_at or session.created_at,
            kernels=tuple(
                (kernel.agent, kernel.id)
                for kernel in session.kernels
                if kernel.agent is not None and len(kernel.holds)
            ),
            is_preemptible=session.status is SessionStatus.RUNNING
            and (session.started_at or session.created_at) <= since
            and session.resource_opts.get("preemptible") != "false",
            is_ending=session.status is SessionStatus.TERMINATING,
            starts_over=session.type is SessionType.BATCH
            and session.resource_opts.get("restartable", default_restartable) == "true",
        )
        for session in sessions
    )


def pending_session(
    session: Session, dependencies: Mapping[SessionId, Session], quotas: Iterable[str]
) -> core.PendingSession:
    variant_requirements = tuple(
        VariantProperty.parse(requirement_text) for requirement_text in session.variant_requirements
    )
    needs_encryption = capabilities.is_encrypted(session.resource_opts)
    device_needs = capabilities.needs_of(
        session.cluster_size,
        session.cluster_mode,
        session.runtime_class,
        is_encrypted_network=needs_encryption,
        optioned_plugins=session.plugin_options,
        has_folders=bool(session.vfolder_mounts),
    )
    return core.PendingSession(
        session_id=session.id,
        name=session.name,
        kernels=tuple(
            core.PendingKernel(
                kernel_id=kernel.id,
                slots=kernel.requested_slots,
                image=kernel.image,
                architecture=kernel.architecture,
                requirements=variant_requirements,
                needs=device_needs,
            )
            for kernel in session.kernels
        ),
        enqueued_at=session.created_at,
        device_requests=session.device_requests,
        priority=session.priority,
        session_type=session.type,
        cluster_mode=session.cluster_mode,
        starts_at=session.starts_at,
        dependencies=tuple(
            core.Dependency(
                session_id=dependency.id, name=dependency.name, status=dependency.status, result=dependency.result
            )
            for session_id in session.dependencies
            if (dependency := dependencies.get(session_id)) is not None
        ),
        designated_agents=session.designated_agents,
        avoided_agents=session.agent_ids,
        quotas=tuple(quotas),
        scope=scope_of(session),
    )


def build_snapshot(
    resource_group: str,
    agents: Sequence[Agent],
    holdings: Sequence[KernelOccupancy],
    pending_sessions: Sequence[Session],
    dependencies: Mapping[SessionId, Session],
    quotas: Mapping[str, core.Quota],
    devices: capabilities.DeviceReader,
    claims: NamedClaims = NO_CLAIMS,
) -> core.Snapshot:
    """Builds the scheduler's input for a resource group from its stored agents, sessions, claims and quotas.

    ``quotas``: those with limits, by :func:`ai.backend.manager.resources.quotas.quota_names`.
    """
    holdings_by_agent: dict[str, list[KernelOccupancy]] = {}
    for holding in holdings:
        holdings_by_agent.setdefault(holding.agent, []).append(holding)
    agent_views = tuple(agent_view(agent, holdings_by_agent.get(agent.id, ()), devices) for agent in agents)
    view_of_agent = {view.agent_id: view for view in agent_views}
    return core.Snapshot(
        resource_group=resource_group,
        agents=agent_views,
        pending=tuple(
            add_claim(
                pending_session(session, dependencies, [name for name in quota_names(session) if name in quotas]),
                session,
                claims,
                view_of_agent,
            )
            for session in pending_sessions
        ),
        quotas=quotas,
    )
