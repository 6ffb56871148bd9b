"""Builds the manager's services and loops, and starts and stops them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from ai.backend.common.errors import NotFound, Unavailable
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import Snapshot
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock, IdGenerator, RandomIds, SystemClock
from ai.backend.infra.config_store import ConfigStore, SQLiteConfigStore
from ai.backend.infra.database import Database, upgrade
from ai.backend.infra.loop import PeriodicCall, cancel_all
from ai.backend.infra.telemetry import Metrics
from ai.backend.manager.agents.store import AgentGateway
from ai.backend.manager.artifacts.client import StorageProxyArtifacts
from ai.backend.manager.artifacts.gateway import ArtifactGateway, Reservoirs
from ai.backend.manager.artifacts.reservoir_client import SdkReservoirs
from ai.backend.manager.composition.bootstrap import Bootstrap
from ai.backend.manager.composition.loops import Loops
from ai.backend.manager.composition.services import Services
from ai.backend.manager.composition.stores import FEATURE_SECRETS, Stores
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.db import MIGRATIONS, SCHEMA_HEAD
from ai.backend.manager.events.webhook_client import HttpCallbackSender
from ai.backend.manager.events.webhook_gateway import WebhookSender
from ai.backend.manager.folders.client import StorageProxyFolders
from ai.backend.manager.folders.gateway import StorageGateway
from ai.backend.manager.identity.passwords import hash_password, verify_password
from ai.backend.manager.leadership.service import Leadership
from ai.backend.manager.maintenance.sql import seal_rows
from ai.backend.manager.secrets.config import seal_config
from ai.backend.manager.secrets.sealer import Sealer
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.storage_proxy import StorageProxies
from ai.backend.manager.volumes.client import StorageProxyVolumes

log = logging.getLogger(__name__)
_LOST_TASKS_CHECK_S = 30.0


class Manager:
    """Holds the manager without its HTTP server, which :func:`ai.backend.manager.composition.app.build_app` builds.

    Args:
        settings: see ``manager.toml``.
        stores: a :class:`Database`, or the stores themselves.
        bus: the in-process bus of notifications.
        gateway: the manager's end of the agent link; the caller starts it with :attr:`reports`.
        storage: the storage proxies; by default those that the shared configuration names.
        artifacts, reservoirs: the storage of artifacts, and other installations; by default the same storage proxies.
        clock, id_generator, rng: the sources of time, identifiers and random numbers; the system's by default.
        callbacks: sends webhooks; over HTTP by default.
        sealer, config: encrypts secrets, by default not at all; the shared configuration, by default in the database.
    """

    def __init__(
        self,
        settings: ManagerSettings,
        stores: Database | Stores,
        bus: Bus,
        gateway: AgentGateway,
        *,
        storage: StorageGateway | None = None,
        artifacts: ArtifactGateway | None = None,
        reservoirs: Reservoirs | None = None,
        clock: Clock | None = None,
        id_generator: IdGenerator | None = None,
        metrics: Metrics | None = None,
        hash_password: Callable[[str], str] = hash_password,
        verify_password: Callable[[str, str], bool] = verify_password,
        sealer: Sealer | None = None,
        config: ConfigStore | None = None,
        callbacks: WebhookSender | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = metrics or Metrics("manager")
        self._database = stores if isinstance(stores, Database) else None
        self._sealer = sealer or Sealer()
        self.stores = Stores.sql(stores, self._sealer, config) if isinstance(stores, Database) else stores
        self._proxies = StorageProxies(self.stores.config)
        if artifacts is None and storage is None:
            artifacts = StorageProxyArtifacts(self._proxies, settings.artifacts)
        self.services = services = Services(
            settings=settings,
            stores=self.stores,
            bus=bus,
            gateway=gateway,
            folder_gateway=storage or StorageProxyFolders(self._proxies),
            volume_gateway=storage or StorageProxyVolumes(self._proxies),
            artifact_gateway=artifacts,
            reservoirs=reservoirs or SdkReservoirs(),
            storage_proxies=self._proxies if storage is None else None,
            sealer=self._sealer,
            clock=clock or SystemClock(),
            id_generator=id_generator or RandomIds(),
            hash_password=hash_password,
            verify_password=verify_password,
        )
        self.metrics.expose(services.stats.families, is_of_other_daemons=True)
        self.metrics.expose(services.state_of_installation.families)
        self.reports, self.registry = services.reports, services.registry
        self.bootstrap = Bootstrap(
            self.stores.identities,
            self.stores.resource_groups,
            services.identity,
            services.clock,
            services.id_generator,
        )
        self.loops = Loops(services, callbacks or HttpCallbackSender(settings.callbacks), rng or random.Random())
        services.state_of_installation.loops = lambda: self.loops if self.leads else ()
        self._tasks: list[asyncio.Task[None]] = []
        self._leader_tasks: list[asyncio.Task[None]] = []
        self._leadership: Leadership | None = None
        if self.stores.leases is not None:
            self._leadership = Leadership(
                self.stores.leases,
                services.clock,
                holder=str(services.id_generator.uuid()),
                ttl_s=settings.manager.lease_s,
                begin=self._start_leading,
                end=self._stop_leading,
            )
            self.registry.leads = lambda: self._leadership is not None and self._leadership.leads
            services.tasks.manager = self._leadership.holder

    @property
    def leads(self) -> bool:
        """Returns True while this manager runs the loops."""
        return bool(self._leader_tasks)

    async def migrate(self) -> None:
        """Upgrades the schema and encrypts plain secrets, or does nothing without a database."""
        if self._database is not None:
            await upgrade(self._database, MIGRATIONS, head=SCHEMA_HEAD)
            await seal_rows(self._database, self._sealer, FEATURE_SECRETS)
        if isinstance(self.stores.config, SQLiteConfigStore):
            await self.stores.config.setup()
        try:
            await seal_config(self.stores.config, self._sealer)
        except Unavailable as e:
            log.warning("passwords of container registries stay as they are until the next start: %s", e)

    async def start(self) -> None:
        """Migrates the database, and starts the loops at once or when this manager becomes the leader. Unfinished work
        continues.
        """
        services = self.services
        await self.migrate()
        await services.slots.load()
        await services.hooks.start()
        if self._leadership is None:
            await services.tasks.recover()
            await self._start_leading()
        else:
            await self._leadership.announce()
        flush_calls = (
            PeriodicCall("last use of keypairs", 5.0, services.identity.flush),
            PeriodicCall("history of sign-ins", 2.0, services.sign_in.flush),
            PeriodicCall("statistics", 30.0, services.stats.flush),
            PeriodicCall("audit trail", 0.5, services.audit.flush),
        )
        background_coroutines = [*(flush_loop.run() for flush_loop in flush_calls), services.activity.run()]
        if self._leadership is not None:
            background_coroutines += [self._leadership.run(), services.tasks.run()]
        self._tasks = [asyncio.create_task(coroutine) for coroutine in background_coroutines]
        await asyncio.sleep(0)

    async def _start_leading(self) -> None:
        """Starts the loops when this manager becomes the leader."""
        self.registry.become_leader()
        coroutines = self.loops.run()
        if self._leadership is not None:
            coroutines.append(self._fail_lost_tasks(self._leadership))
        self._leader_tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]

    async def _stop_leading(self) -> None:
        """Stops the loops when this manager is no longer the leader; the next leader continues their work."""
        tasks, self._leader_tasks = self._leader_tasks, []
        await cancel_all(*tasks)
        await self.loops.stop()

    async def _fail_lost_tasks(self, leadership: Leadership) -> None:
        """Marks background tasks of stopped managers as failed, periodically."""
        while True:
            try:
                await self.services.tasks.recover(living=await leadership.living_managers())
            except Exception:  # the next round tries again
                log.exception("could not check the background tasks of other managers")
            await asyncio.sleep(_LOST_TASKS_CHECK_S)

    async def stop(self) -> None:
        """Stops the loops and writes pending data; sessions keep running. Safe without ``start`` and twice."""
        services = self.services
        await cancel_all(*self._tasks)
        self._tasks = []
        await self._stop_leading()
        await services.tasks.stop()
        await services.hooks.stop()
        await self._proxies.close()
        await services.coordinators.close()
        buffering_services = (services.identity, services.sign_in, services.stats, services.audit, services.activity)
        flush_methods = [service.flush for service in buffering_services]
        if self._leadership is not None:
            flush_methods.append(self._leadership.stop)
        for flush_pending in flush_methods:
            try:
                await flush_pending()
            except Exception:  # the other writes must still be tried
                log.exception("could not write pending data")

    async def scheduling(self, resource_group: str) -> tuple[Snapshot, Policy]:
        """Returns a snapshot of a resource group, as the scheduler reads it, and the policy of the resource group.

        Raises NotFound if there is no such resource group.
        """
        if await self.stores.resource_groups.resource_group(resource_group) is None:
            group_names = (
                ", ".join(sorted(group.name for group in await self.stores.resource_groups.resource_groups())) or "none"
            )
            raise NotFound(f"there is no resource group {resource_group[:64]}; there are: {group_names}")
        return await self.loops.schedule.dump(resource_group)

    async def live_sessions(self, ref: str) -> list[Session]:
        """Returns the live sessions, of every owner, whose name or id is ``ref``.

        If there are none, the live sessions whose name or id starts with ``ref`` are returned. Raises NotFound.
        """
        sessions = await self.stores.sessions.find_live(None, ref)
        if not sessions:
            raise NotFound(f"no live session is called {ref[:64]}; `backend.ai ps` lists them")
        return sessions
