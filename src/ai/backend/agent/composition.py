"""Composition of agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ai.backend.agent.config.settings import INTRINSIC_PLUGINS, AgentSettings
from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.operations import DeviceOperations
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.agent.host import Host
from ai.backend.agent.images.jobs import ImageJobs
from ai.backend.agent.kernels.files import DirectoryState
from ai.backend.agent.kernels.observer import ObservationQueue
from ai.backend.agent.kernels.store import Outbox
from ai.backend.agent.kit.store import KitStore
from ai.backend.agent.lifecycle.context import AgentContext
from ai.backend.agent.lifecycle.device_failures import HealthLoop
from ai.backend.agent.lifecycle.exits import watch_exits
from ai.backend.agent.lifecycle.recovery import Recovery
from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.agent.link.commands import Commands
from ai.backend.agent.link.heartbeat import Heartbeat
from ai.backend.agent.link.report import HeartbeatReporter
from ai.backend.agent.link.statistics_loop import StatisticsLoop
from ai.backend.agent.metrics.host import HostMeter
from ai.backend.agent.metrics.processes import Processes
from ai.backend.agent.metrics.statistics import Statistics
from ai.backend.agent.networks.networks import Networks
from ai.backend.agent.networks.underlay import encryption_mark, overlay_report
from ai.backend.agent.service_ports.forward import PortForwarder
from ai.backend.agent.service_ports.services import ServiceManager
from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.wire.link import AgentCommands, ManagerReports
from ai.backend.infra.loop import PeriodicCall
from ai.backend.node.linux import ipsec
from ai.backend.plugin.discovery import PluginSource, find_plugins
from ai.backend.plugin.runtime import AbstractRuntime

_KITS_S = 3600.0


def this_host(settings: AgentSettings) -> Host:
    """The machine that the agent runs on, with the data directory of its settings."""
    return Host(
        state=DirectoryState(settings.data_dir),
        kits=KitStore(settings.data_dir / "kit"),
        meter=HostMeter(settings.data_dir),
        overlay=partial(overlay_report, settings),
        secure=partial(ipsec.apply, encryption_mark(settings)),
    )


class Agent:
    """One agent.

    ``start`` returns once the node was probed and earlier kernels are known; workloads are adopted in the background.
    ``stop`` leaves every workload running. ``commands`` may be handed to a link before ``start``; calls then raise
    Unavailable.

    Args:
        settings: the whole ``agent.toml``.
        runtime: not set up yet; the agent sets it up and shuts it down.
        manager: where reports go. It may be unreachable at any time.
        plugins: where accelerators come from; None finds them as the settings say.
        host: the machine; by default this one, with the data directory of the settings.
    """

    def __init__(
        self,
        settings: AgentSettings,
        runtime: AbstractRuntime,
        manager: ManagerReports,
        *,
        plugins: Sequence[PluginSource] | None = None,
        host: Host | None = None,
    ) -> None:
        self.settings = settings
        self._runtime = runtime
        self._manager = manager
        self._sources = plugins
        self._host = host or this_host(settings)
        self._tasks: list[asyncio.Task[None]] = []
        self._plugins: PluginSet | None = None
        self._supervisor: Supervisor | None = None
        self._images: ImageJobs | None = None
        self._outbox: Outbox | None = None
        self._recovered = asyncio.Event()
        self._commands: Commands | None = None
        self._beat: Callable[[], None] = lambda: None

    @property
    def agent_id(self) -> str:
        return self.settings.agent.id

    async def start(self) -> None:
        """Raises Conflict if another agent uses the data directory, or what the runtime's setup raises."""
        self._host.state.open()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        settings, host = self.settings, self._host
        epoch = host.state.next_epoch()
        node, lifecycles = settings.agent, settings.kernel_lifecycles
        sources = self._sources
        if sources is None:
            sources = find_plugins(
                node.allow_compute_plugins,
                node.block_compute_plugins,
                INTRINSIC_PLUGINS,
                node.in_process_compute_plugins,
            )
        plugins = self._plugins = PluginSet(
            sources,
            settings=settings.plugin_settings,
            order=settings.resource.allocation_order,
            timeout_s=lifecycles.plugin_timeout,
            environment=node.plugin_environment,
        )
        records, leftovers = host.state.kernel_records(), host.state.leftovers()
        outbox = self._outbox = host.state.outbox()
        observer = ObservationQueue(outbox, self._manager, agent_id=node.id, epoch=epoch, wall_clock=host.wall_clock)
        inventory = Inventory(plugins, epoch, settings.resource.allocation_order)
        ports = PortForwarder(self._runtime, settings.services)
        host.kits.open()
        desk = ServiceManager(self._runtime, ports, host.kits, settings.runs)
        around = AgentContext(
            settings=settings,
            epoch=epoch,
            secret=host.state.secret(),
            runtime=self._runtime,
            networks=Networks(self._runtime, host.secure),
            desk=desk,
            plugins=plugins,
            inventory=inventory,
            records=records,
            leftovers=leftovers,
            observer=observer,
            wall_clock=host.wall_clock,
        )
        statistics = Statistics(self._runtime, plugins, inventory, host.meter, wall_clock=host.wall_clock)
        processes = Processes(self._runtime, plugins, inventory, wall_clock=host.wall_clock)
        supervisor = self._supervisor = Supervisor(around, statistics)
        reporting = HeartbeatReporter(around, supervisor)

        async def look() -> None:
            await reporting.refresh(asyncio.get_running_loop().time())
            self._beat()

        devices = DeviceOperations(plugins, inventory, look=look)
        self._images = ImageJobs(self._runtime, supervisor)
        self._commands = Commands(
            supervisor, self._runtime, processes, devices, self._images, ports, desk, settings.runs, self._recovered
        )
        await self._runtime.setup()
        reporting.overlay = await asyncio.to_thread(host.overlay, self._runtime.info())
        await reporting.refresh(asyncio.get_running_loop().time())
        with suppress(BackendError):  # the loop says so, and tries again
            await reporting.refresh_images()
        observer.restore()
        recovery = Recovery(around, supervisor)
        await recovery.recover()
        self._recovered.set()
        self._run_loops(around, reporting, supervisor, recovery, statistics, observer)
        self._spawn(PeriodicCall("kits", _KITS_S, host.kits.clean).run(), "kits")

    def _run_loops(
        self,
        around: AgentContext,
        reporting: HeartbeatReporter,
        supervisor: Supervisor,
        recovery: Recovery,
        statistics: Statistics,
        observer: ObservationQueue,
    ) -> None:
        intervals = self.settings.intervals
        heartbeat = Heartbeat(reporting, supervisor, self._manager, interval_s=intervals.heartbeat)
        self._beat = heartbeat.wake

        async def refresh() -> None:
            if await reporting.refresh(asyncio.get_running_loop().time()):
                heartbeat.wake()
            health.tell()

        async def refresh_images() -> None:
            if await reporting.refresh_images():
                around.desk.forget_images()
                heartbeat.wake()

        inventory = PeriodicCall("inventory", intervals.inventory, refresh)
        around.plugins.changed = inventory.wake
        health = HealthLoop(
            around.plugins, around.inventory, supervisor, observer, look=inventory.wake, beat=heartbeat.wake
        )

        stats = StatisticsLoop(
            statistics,
            supervisor,
            self._manager,
            agent_id=self.agent_id,
            interval_s=intervals.statistics,
            wall_clock=self._host.wall_clock,
        )
        for loop in (
            heartbeat,
            stats,
            inventory,
            PeriodicCall("images", intervals.images, refresh_images),
            PeriodicCall("sync", intervals.sync, recovery.sync),
        ):
            self._spawn(loop.run(), loop.name)
        self._spawn(health.run(), "health")
        self._spawn(watch_exits(self._runtime, supervisor), "exits")
        self._spawn(observer.deliver(), "observations")

    def _spawn(self, loop: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(loop, name=f"agent-{name}"))

    async def stop(self) -> None:
        """Let go of everything, leaving the workloads running. Safe without ``start`` and twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._recovered.clear()
        self._commands = None
        images, self._images = self._images, None
        if images is not None:
            await images.close()
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            await supervisor.close()
            await self._runtime.shutdown()
        plugins, self._plugins = self._plugins, None
        if plugins is not None:
            await plugins.stop()
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            outbox.close()
        self._host.state.close()

    @property
    def commands(self) -> AgentCommands:
        """Raises Unavailable unless the agent is started."""
        if self._commands is None:
            raise Unavailable(f"the agent {self.agent_id} is not started")
        return self._commands
