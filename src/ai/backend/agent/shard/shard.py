"""Runs one agent for each node of the shard, in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ai.backend.agent.composition import Agent, Host
from ai.backend.agent.config.kubernetes import CountedSettings, DriverSettings, KubernetesSettings
from ai.backend.agent.config.settings import AgentSettings, IntervalSettings
from ai.backend.agent.kernels.files import DirectoryState
from ai.backend.agent.kit.build import KIT_IN_IMAGE, KIT_SERVICES
from ai.backend.agent.service_ports.services import KIT_MOUNT_TARGET
from ai.backend.agent.shard.devices import device_name_of
from ai.backend.agent.shard.inventory import NodeInventory
from ai.backend.agent.shard.nodes import NodeFacts
from ai.backend.agent.shard.plugins import node_plugins
from ai.backend.common.structs import replace
from ai.backend.common.wire.link import AgentCommands, ManagerReports
from ai.backend.common.wire.reports import (
    AgentReport,
    BeatReply,
    BeatReport,
    HeartbeatReply,
    KeptDevices,
    KeptDevicesOf,
    ObservationReport,
    OverlayReport,
    StatReport,
)
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.runtime import AbstractRuntime, RuntimeInfo

log = logging.getLogger(__name__)
_STARTS = 8
"""How many agents start at once."""
_RETURN_S = 0.05
"""The seconds from the return of a lost node to its next heartbeat."""
_GATHER_S = 0.1
"""Changes of one node within so many seconds are one."""
NODE_INTERVALS = IntervalSettings(statistics=15.0, inventory=600.0, images=300.0, health=60.0, sync=60.0)
"""Periods where the cluster tells changes by itself; those of one machine would be a load for many. A node's devices
are looked at when its objects change (:meth:`Agent.refresh`); a kubelet reports its images each five minutes."""
MakeRuntime = Callable[[str], AbstractRuntime]
"""Returns the runtime of a node by its name."""


class NodeReports:
    """Sends the reports of one node's agent. Heartbeats contain the cluster's facts of the node. The loss of the node
    is reported once; then heartbeats stop until the node is back.
    """

    def __init__(
        self, manager: ManagerReports, speaker: str, facts: Callable[[], NodeFacts], is_present: asyncio.Event
    ) -> None:
        """Stores the manager and the facts of the node. ``is_present`` is set while the node is not lost."""
        self._manager = manager
        self._speaker = speaker
        self._facts = facts
        self._present = is_present
        self._has_statistics = True

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        """Sends a heartbeat. Where the node is lost, reports the loss, and waits until the node is back; another
        heartbeat follows at once.
        """
        facts = self._facts()
        if facts.lost:
            await self._manager.heartbeat(replace(report, speaker=self._speaker, loss=facts.lost))
            log.warning("%s is lost: %s", report.agent_id, facts.lost)
            await self._present.wait()
            return HeartbeatReply(interval_s=_RETURN_S)
        is_open = not facts.closed
        return await self._manager.heartbeat(
            replace(
                report,
                speaker=self._speaker,
                architecture=facts.architecture,
                resource_group=facts.resource_group,
                location=list(facts.location),
                kernel_limit=facts.pods if is_open else 0,
                addr=facts.address,
            )
        )

    async def beat(self, report: BeatReport) -> BeatReply:
        """Forwards a heartbeat that contains no changes."""
        return await self._manager.beat(report)

    async def observe(self, report: ObservationReport) -> int:
        return await self._manager.observe(report)

    async def report_stats(self, report: StatReport) -> None:
        """Forwards statistics to the manager. Of consecutive empty reports only the first is forwarded.

        A report is empty if nothing was measured. Statistics of a lost node are dropped.
        """
        had_statistics = self._has_statistics
        has_samples = any(family.samples for family in report.families)
        self._has_statistics = bool(report.node or report.devices or report.kernels or has_samples)
        if not self._facts().lost and (had_statistics or self._has_statistics):
            await self._manager.report_stats(report)

    async def kept_devices(self, req: KeptDevicesOf) -> KeptDevices:
        return await self._manager.kept_devices(req)


class _ImageKits:
    """Represents the kit that every pod has as a part of the runner's image (`python -m tools.runner_image`)."""

    services = KIT_SERVICES
    is_built_in = True
    directory = Path(KIT_MOUNT_TARGET)

    def open(self) -> None: ...

    async def ensure(self) -> str:
        return KIT_IN_IMAGE

    async def clean(self) -> None: ...


def _no_overlay(info: RuntimeInfo) -> OverlayReport:
    return OverlayReport(why_not="sessions on this cluster have its own network")


@dataclass(eq=False)
class _Member:
    """Holds the facts of a node and the agent of the node. ``present`` is set while the node is not lost."""

    facts: NodeFacts
    agent: Agent | None = None
    present: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.take(self.facts)

    def take(self, facts: NodeFacts) -> None:
        """Stores the present facts of the node, and sets or clears ``present`` as the node is present or lost."""
        self.facts = facts
        if facts.lost:
            self.present.clear()
        else:
            self.present.set()


def _facts_of(member: _Member) -> NodeFacts:
    return member.facts


def _with_resources(
    settings: KubernetesSettings, drivers: dict[str, DriverSettings], counted: dict[str, CountedSettings]
) -> KubernetesSettings:
    return settings.model_copy(update={"drivers": drivers, "counted": counted})


class Shard:
    """Keeps an agent running for each node of an inventory.

    ``agents`` maps their ids to their commands, for the link. An agent starts when its node appears, is started anew
    when another node takes the name, and ends with the node; its workloads are never touched by that.
    """

    def __init__(
        self,
        settings: AgentSettings,
        make_runtime: MakeRuntime,
        manager: ManagerReports,
    ) -> None:
        self._settings = settings
        self._make_runtime = make_runtime
        self._manager = manager
        self._members: dict[str, _Member] = {}
        self._changed: set[str] = set()
        self._is_changed = asyncio.Event()
        self._starts = asyncio.Semaphore(_STARTS)
        self.agents: dict[str, AgentCommands] = {}

    def schedule_comparison(self, node: str) -> None:
        """Schedules that the agent of a node is compared with the Kubernetes object of the node again."""
        self._changed.add(node)
        self._is_changed.set()

    async def run(self, inventory: NodeInventory) -> None:
        """Follows the inventory until cancelled."""
        for name in inventory.names():
            self.schedule_comparison(name)
        backoff = Backoff(0.5, 30.0, jitter=0.5)
        while True:
            await self._is_changed.wait()
            await asyncio.sleep(_GATHER_S)
            changed_names, self._changed = self._changed, set()
            self._is_changed.clear()
            failed_names = [
                name
                for name, is_done in zip(
                    changed_names,
                    await asyncio.gather(*(self._reconcile(name, inventory) for name in changed_names)),
                    strict=True,
                )
                if not is_done
            ]
            if not failed_names:
                backoff.reset()
                continue
            self._changed.update(failed_names)
            self._is_changed.set()
            await backoff.wait()

    async def _reconcile(self, name: str, inventory: NodeInventory) -> bool:
        """Starts, updates or stops the agent of a node as the cluster's facts about the node require.

        Returns False if that failed, and must be tried again.
        """
        facts, member = inventory.facts(name), self._members.get(name)
        try:
            if member is not None and (facts is None or facts.uid != member.facts.uid):
                del self._members[name]
                await self._stop(member)
                member = None
            if facts is None:
                return True
            if member is None:
                async with self._starts:
                    await self._start(name, facts)
            elif facts != member.facts:
                member.take(facts)
                if member.agent is not None:
                    member.agent.refresh()
        except Exception:
            log.exception("the agent of the node %s cannot be started or stopped; it is tried again", name)
            return False
        return True

    async def _start(self, name: str, facts: NodeFacts) -> None:
        member = _Member(facts)
        settings = self._settings_of(facts)
        host = Host(state=DirectoryState(settings.data_dir), kits=_ImageKits(), meter=None, overlay=_no_overlay)
        kubernetes = self._settings.kubernetes
        agent = Agent(
            settings,
            self._make_runtime(name),
            NodeReports(self._manager, kubernetes.speaker, lambda: member.facts, member.present),
            plugins=node_plugins(partial(_facts_of, member), kubernetes),
            host=host,
        )
        await agent.start()
        member.agent = agent
        self._members[name] = member
        self.agents[facts.agent_id] = agent.commands

    async def reload(self, settings: AgentSettings, inventory: NodeInventory) -> dict[str, str]:
        """Takes over drivers, counted resources and plugins' settings in the agents of all nodes; workloads stay.

        A driver that is no longer named stays where its devices are held, and is offered until the next reload. Returns
        why plugins are as before, by agent and plugin. Raises Unavailable if the cluster does not serve what is needed.
        """
        old_settings, new_settings = self._settings.kubernetes, settings.kubernetes
        # What devices are held of may vanish only after no agent serves it.
        await inventory.reconfigure(
            _with_resources(
                new_settings,
                {**old_settings.drivers, **new_settings.drivers},
                {**old_settings.counted, **new_settings.counted},
            )
        )
        plugins_table = {"plugins": settings.plugins}
        self._settings = self._settings.model_copy(update={"kubernetes": inventory.settings, **plugins_table})
        reason_of_refused: dict[str, str] = {}
        refused_keys: set[str] = set()
        for name, member in list(self._members.items()):
            if member.agent is None:
                continue
            member.take(inventory.facts(name) or member.facts)
            sources = node_plugins(partial(_facts_of, member), new_settings)
            for plugin_key, reason in (
                await member.agent.reload_plugins(self._settings_of(member.facts), sources)
            ).items():
                reason_of_refused[f"{member.facts.agent_id} {plugin_key}"] = reason
                refused_keys.add(plugin_key)
        kubernetes_settings = _with_resources(
            new_settings,
            {
                **{
                    name: resource_settings
                    for name, resource_settings in old_settings.drivers.items()
                    if device_name_of(name, resource_settings) in refused_keys
                },
                **new_settings.drivers,
            },
            {
                **{
                    name: resource_settings
                    for name, resource_settings in old_settings.counted.items()
                    if device_name_of(name, resource_settings) in refused_keys
                },
                **new_settings.counted,
            },
        )
        await inventory.reconfigure(kubernetes_settings)
        self._settings = self._settings.model_copy(update={"kubernetes": inventory.settings})
        return reason_of_refused

    def _settings_of(self, facts: NodeFacts) -> AgentSettings:
        node = self._settings.agent.model_copy(
            update={
                "id": facts.agent_id,
                "resource_group": facts.resource_group,
                "location": facts.location,
                "data_dir": self._settings.data_dir / "nodes" / facts.agent_id,
            }
        )
        gateway = self._settings.gateway
        if gateway.plane == "automatic":  # one process of HAProxy for each node of a cluster would be too many
            gateway = gateway.model_copy(update={"plane": "embedded"})
        return self._settings.model_copy(update={"agent": node, "intervals": NODE_INTERVALS, "gateway": gateway})

    async def _stop(self, member: _Member) -> None:
        self.agents.pop(member.facts.agent_id, None)
        if member.agent is not None:
            await member.agent.stop()

    async def close(self) -> None:
        """Stops all agents but no workloads."""
        members, self._members = list(self._members.values()), {}
        await asyncio.gather(*(self._stop(member) for member in members))
