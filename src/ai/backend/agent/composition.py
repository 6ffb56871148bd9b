"""Wires the agent together: :class:`Agent` for embedding programs, :func:`serve` for the daemon."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ai.backend.agent.config.settings import INTRINSIC_PLUGINS, AgentSettings
from ai.backend.agent.devices.cdi import CdiSpecifications
from ai.backend.agent.devices.cordons import Cordons
from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.partitions import Partitioner
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.agent.devices.reloading import PluginReload
from ai.backend.agent.devices.upkeep import DeviceUpkeep
from ai.backend.agent.devices.whole_devices import WholeDevices
from ai.backend.agent.gateway.server import ServiceGateway
from ai.backend.agent.images.jobs import ImageJobs
from ai.backend.agent.kernels.files import DirectoryState
from ai.backend.agent.kernels.kept_devices import KeptDevices
from ai.backend.agent.kernels.observer import ObservationQueue
from ai.backend.agent.kernels.store import DurableState
from ai.backend.agent.kit.build import KitStore
from ai.backend.agent.lifecycle.context import AgentContext
from ai.backend.agent.lifecycle.device_failures import HealthLoop
from ai.backend.agent.lifecycle.recovery import Recovery, watch_exits
from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.agent.link.commands import Commands
from ai.backend.agent.link.report import Heartbeat, HeartbeatReporter, report_statistics
from ai.backend.agent.metrics.host import HostMeter
from ai.backend.agent.metrics.overuse import OveruseWatch
from ai.backend.agent.metrics.statistics import NodeMeter, Statistics
from ai.backend.agent.networks.networks import Networks
from ai.backend.agent.networks.underlay import encryption_mark, overlay_report
from ai.backend.agent.runtimes import load_runtime
from ai.backend.agent.service_ports.services import Kits, PortForwarder, ServiceManager
from ai.backend.common.errors import BackendError, Conflict, Unavailable
from ai.backend.common.wire.link import AgentCommands, ByteStream, ManagerReports
from ai.backend.common.wire.reports import OverlayReport
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.infra.loop import PeriodicCall, PeriodicLoop
from ai.backend.node.linux import ipsec
from ai.backend.node.linux.ipsec import SecuredLine
from ai.backend.plugin.discovery import PluginSource, find_plugins
from ai.backend.plugin.runtime import AbstractRuntime, RuntimeInfo

if TYPE_CHECKING:
    from ai.backend.agent.link.managers import SharedConfiguration

log = logging.getLogger(__name__)
_KIT_CLEANING_PERIOD_S = 3600.0
_MAX_UPKEEP_S = 60.0
"""The upper limit of the seconds between checks of cordons, also where devices are listed more rarely."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the services of the machine that one agent runs on.

    ``meter`` is None for an agent that runs elsewhere than its workloads. ``overlay`` and ``secure`` block; ``secure``
    encrypts exactly these lines to other nodes.
    """

    state: DurableState
    kits: Kits
    meter: NodeMeter | None
    overlay: Callable[[RuntimeInfo], OverlayReport]
    secure: Callable[[Collection[SecuredLine]], None] | None = None
    wall_clock: Callable[[], float] = time.time


def this_host(settings: AgentSettings) -> Host:
    """Returns the services of this machine, with the data directory of the agent's settings."""
    return Host(
        state=DirectoryState(settings.data_dir),
        kits=KitStore(settings.data_dir / "kit"),
        meter=HostMeter(settings.data_dir),
        overlay=partial(overlay_report, settings),
        secure=partial(ipsec.apply, encryption_mark(settings)),
    )


class Agent:
    """Runs an agent with all its services and loops.

    ``start`` returns once the node was probed and the records were loaded; workloads are adopted in the background.
    ``stop`` leaves every workload running.

    Args:
        settings: the whole ``agent.toml``.
        runtime: a runtime that is not set up; the agent sets it up and shuts it down.
        manager: receives the reports. It may be unreachable at any time.
        plugins: the sources of accelerator plugins; None discovers them by the settings.
        host: the machine of the agent; None stands for this one, with the data directory of the settings.
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
        self._parts = AsyncExitStack()
        self._recovered = asyncio.Event()
        self._commands: Commands | None = None
        self._refreshes: PeriodicCall | None = None
        self._reload: PluginReload | None = None
        self.supervisor: Supervisor | None = None

    @property
    def agent_id(self) -> str:
        return self.settings.agent.id

    async def start(self) -> None:
        """Starts the agent. Raises Conflict if another agent uses its data directory, and runtime setup errors."""
        self._host.state.open()
        self._parts.callback(self._host.state.close)
        try:
            await self._start()
        except (Exception, asyncio.CancelledError):  # a coroutine that is closed may not wait
            await self.stop()
            raise

    async def _start(self) -> None:
        settings, host, runtime, exit_stack = self.settings, self._host, self._runtime, self._parts
        node, intervals, clock = settings.agent, settings.intervals, asyncio.get_running_loop().time
        epoch, outbox = host.state.next_epoch(), host.state.outbox()
        exit_stack.callback(outbox.close)
        plugins = PluginSet(self._plugin_sources(), settings)
        exit_stack.push_async_callback(plugins.stop)
        whole_devices = WholeDevices(host.state.whole_devices())
        inventory = Inventory(plugins, epoch, cut_on_demand=node.partition_on_demand, whole_devices=whole_devices)
        exit_stack.push_async_callback(inventory.close)

        async def refresh_and_report() -> None:
            await reporter.refresh(clock())
            heartbeat.wake()

        cordons = Cordons(host.state.cordons(), host.wall_clock)
        observer = ObservationQueue(outbox, self._manager, agent_id=node.id, epoch=epoch, wall_clock=host.wall_clock)
        read_kept_ids = KeptDevices(self._manager, observer, node.id).ids
        upkeep = DeviceUpkeep.make(
            plugins,
            inventory,
            cordons,
            node,
            clock=clock,
            refresh=refresh_and_report,
            read_kept_ids=read_kept_ids,
        )
        ports = PortForwarder(runtime, settings.services)
        host.kits.open()
        gateway = ServiceGateway(settings, host.state.gateway_values(), partial(self._connect, ports))
        context = self._context(epoch, observer, ports, gateway, plugins, inventory, upkeep.partitioner)
        statistics = Statistics(runtime, plugins, inventory, host.meter, wall_clock=host.wall_clock)
        supervisor = self.supervisor = Supervisor(context, statistics)
        statistics.metric_rules = upkeep.metric_rules
        statistics.overuse = OveruseWatch(settings.resource, supervisor.end_for_overuse)
        exit_stack.push_async_callback(runtime.shutdown)
        exit_stack.push_async_callback(supervisor.close)
        image_jobs = ImageJobs(runtime, supervisor.get)
        exit_stack.push_async_callback(image_jobs.close)
        reporter = HeartbeatReporter(context, supervisor)
        heartbeat = Heartbeat(reporter, supervisor, self._manager, interval_s=intervals.heartbeat)
        recovery = Recovery(context, supervisor)

        async def refresh() -> None:
            await reporter.refresh(clock())
            heartbeat.wake()  # facts of the node that are no devices may have changed, too
            health_loop.report()

        async def refresh_images() -> None:
            if await reporter.refresh_images():
                context.services.forget_images()
                heartbeat.wake()

        self._reload = PluginReload(plugins, inventory, refresh=refresh_and_report)
        inventory_refresh = self._refreshes = PeriodicCall("inventory", intervals.inventory, refresh)
        health_loop = HealthLoop(context, supervisor, refresh=inventory_refresh.wake, beat=heartbeat.wake)
        self._commands = Commands(
            supervisor=supervisor,
            runtime=runtime,
            statistics=statistics,
            devices=upkeep.operations,
            images=image_jobs,
            ports=ports,
            services=context.services,
            gateway=gateway,
            settings=settings.runs,
            recovered=self._recovered,
        )
        await runtime.setup()
        reporter.overlay = await asyncio.to_thread(host.overlay, runtime.info())
        await reporter.refresh(clock())
        with suppress(BackendError):  # the loop logs it and tries again
            await reporter.refresh_images()
        context.observer.restore()
        await recovery.recover()
        exit_stack.push_async_callback(gateway.stop)
        await gateway.start(supervisor.kernels)
        self._recovered.set()
        plugins.changed = inventory_refresh.wake
        inventory.changed = heartbeat.wake
        loops: tuple[PeriodicLoop, ...] = (
            heartbeat,
            PeriodicCall(
                "statistics",
                intervals.statistics,
                partial(report_statistics, context, supervisor, statistics, self._manager),
            ),
            inventory_refresh,
            *upkeep.loops(min(intervals.inventory, _MAX_UPKEEP_S)),
            PeriodicCall("cdi", intervals.inventory, context.cdi.refresh),
            PeriodicCall("images", intervals.images, refresh_images),
            PeriodicCall("sync", intervals.sync, recovery.sync),
            PeriodicCall("kits", _KIT_CLEANING_PERIOD_S, host.kits.clean),
        )
        for loop in loops:
            self._spawn(loop.run(), loop.name)
        self._spawn(health_loop.run(), "health")
        self._spawn(watch_exits(runtime, supervisor), "exits")
        self._spawn(context.observer.deliver(), "observations")

    def _context(
        self,
        epoch: int,
        observer: ObservationQueue,
        ports: PortForwarder,
        gateway: ServiceGateway,
        plugins: PluginSet,
        inventory: Inventory,
        partitioner: Partitioner,
    ) -> AgentContext:
        settings, host, runtime = self.settings, self._host, self._runtime
        return AgentContext(
            settings=settings,
            epoch=epoch,
            secret=host.state.secret(),
            runtime=runtime,
            networks=Networks(runtime, host.secure),
            services=ServiceManager(runtime, ports, host.kits, settings.runs),
            gateway=gateway,
            plugins=plugins,
            inventory=inventory,
            partitioner=partitioner,
            cdi=CdiSpecifications(plugins, lambda: runtime.info().cdi_directories, agent_id=settings.agent.id),
            records=host.state.kernel_records(),
            leftovers=host.state.leftovers(),
            observer=observer,
            wall_clock=host.wall_clock,
        )

    async def reload_plugins(
        self, settings: AgentSettings, plugins: Sequence[PluginSource] | None = None
    ) -> dict[str, str]:
        """Adds, removes and reloads plugins as new settings say. Every other changed setting needs a restart of the
        agent.

        Returns the reasons for which plugins stay as they were, by their names. Raises Unavailable before the agent
        has started.
        """
        if self._reload is None:
            raise Unavailable("the agent starts or stops")
        return await self._reload.reload(settings, plugins if plugins is not None else self._plugin_sources(settings))

    def _plugin_sources(self, settings: AgentSettings | None = None) -> Sequence[PluginSource]:
        if self._sources is not None:
            return self._sources
        node = (settings or self.settings).agent
        allowed, blocked = node.allow_compute_plugins, node.block_compute_plugins
        return find_plugins(allowed, blocked, INTRINSIC_PLUGINS, node.in_process_compute_plugins)

    async def _connect(self, ports: PortForwarder, kernel_id: str, port: int) -> ByteStream:
        """Connects to a port of a running kernel. Raises Unavailable, NotFound, Conflict, or an error of
        ``ports.open``.
        """
        if self.supervisor is None:
            raise Unavailable("the agent stops")
        kernel = self.supervisor.get(kernel_id)
        if kernel.phase is not Phase.RUNNING:
            raise Conflict(f"the kernel {kernel_id} is {kernel.status}")
        return await ports.open(kernel, port)

    def _spawn(self, loop: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(loop, name=f"agent-{name}"))

    def refresh(self) -> None:
        """Starts a listing of the plugins' devices; then reports them and the facts of the node to the managers."""
        if self._refreshes is not None:
            self._refreshes.wake()

    async def stop(self) -> None:
        """Stops the agent but not the workloads. Safe without ``start`` and twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._recovered.clear()
        self._commands = self.supervisor = self._refreshes = None
        await self._parts.aclose()

    @property
    def commands(self) -> AgentCommands:
        """The commands that managers may call. Raises Unavailable unless the agent is started."""
        if self._commands is None:
            raise Unavailable(f"the agent {self.agent_id} is not started")
        return self._commands


async def serve(
    settings: AgentSettings, stop: asyncio.Event, *, load: Callable[[], AgentSettings] | None = None
) -> None:
    """Runs an agent, connected to every manager by ZeroMQ, until ``stop`` is set. Workloads keep running.

    At SIGHUP plugins and their settings are reloaded as ``load`` reads them.

    Raises InvalidInput for missing or wrong settings, and Conflict if another agent uses the data directory.
    """
    from ai.backend.agent.link.managers import SharedConfiguration, key_files, named_managers
    from ai.backend.infra.process.daemon import on_hang_up
    from ai.backend.infra.process.memory import trim_while_running
    from ai.backend.infra.rpc.fanout import ManagerFanout
    from ai.backend.infra.rpc.zmq.agent import ZmqAgentEndpoint

    shared_configuration = SharedConfiguration(settings)
    agent_keys = key_files(settings)

    def connect(address: str, key: str) -> ZmqAgentEndpoint:
        return ZmqAgentEndpoint(
            connect=address,
            agent_id=settings.agent.id,
            keypair=agent_keys.keypair,
            manager_key=key,
            newest_keys=partial(agent_keys.newest, key),
        )

    managers = named_managers(settings.link) or await shared_configuration.managers()
    settings = await shared_configuration.merged(settings)
    endpoint = ManagerFanout(connect, managers)
    agent = Agent(settings, load_runtime(settings), endpoint.reports)
    async with AsyncExitStack() as exit_stack:
        exit_stack.push_async_callback(shared_configuration.close)
        exit_stack.push_async_callback(agent.stop)
        exit_stack.push_async_callback(endpoint.stop)
        await agent.start()
        await endpoint.start(agent.commands)
        if not named_managers(settings.link):
            exit_stack.callback(asyncio.create_task(shared_configuration.follow(endpoint)).cancel)
        log.info("the agent %s serves the managers at %s", agent.agent_id, ", ".join(managers))
        if load is not None:
            on_hang_up.append(reloader(agent, shared_configuration, load))
        async with trim_while_running():
            await stop.wait()


def reloader(
    agent: Agent, shared_configuration: SharedConfiguration, load: Callable[[], AgentSettings]
) -> Callable[[], None]:
    """Returns a function that reads the agent's settings again and then reloads the plugins in the background.

    The function raises the errors of the settings.
    """
    reload_tasks: set[asyncio.Task[object]] = set()

    async def reload(settings: AgentSettings) -> None:
        try:
            await agent.reload_plugins(await shared_configuration.merged(settings))
        except BackendError as e:
            log.error("plugins stay as they are: %s", e)

    def begin_reload() -> None:
        task = asyncio.get_running_loop().create_task(reload(load()), name="agent-reload")
        reload_tasks.add(task)
        task.add_done_callback(reload_tasks.discard)

    return begin_reload
