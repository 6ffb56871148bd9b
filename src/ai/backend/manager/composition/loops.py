"""Builds all loops of the manager, and wakes them on messages of the bus."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

from ai.backend.core.lifecycle.effects import DestroyKernels
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.arrays.loop import ArrayLoop
from ai.backend.manager.composition.services import Services
from ai.backend.manager.events.webhook_gateway import WebhookSender
from ai.backend.manager.events.webhook_loop import WebhookLoop
from ai.backend.manager.idle.loop import IdleLoop
from ai.backend.manager.maintenance.loop import RetentionLoop
from ai.backend.manager.scheduling.loop import ScheduleLoop
from ai.backend.manager.secrets.sealer import open_environ
from ai.backend.manager.sessions.claims.loop import ClaimLoop
from ai.backend.manager.sessions.lifecycle.launch import LaunchLoop
from ai.backend.manager.sessions.lifecycle.terminate import TerminateLoop
from ai.backend.manager.sessions.lifecycle.watchdog import WatchdogLoop
from ai.backend.manager.topics import ARRAY, CALLBACK, CLAIM, LAUNCH, SCHEDULE, SERVING, TERMINATE

_MAX_MESSAGES = 10_000


class Loops:
    """Holds the loops of a manager, and wakes each loop on the messages of the bus that concern the loop.

    The loops run while the manager is the leader. A lost message of the bus only costs time, as every loop also runs
    periodically.
    """

    def __init__(self, services: Services, sender: WebhookSender, rng: random.Random) -> None:
        stores, settings, clock, writer = services.stores, services.settings, services.clock, services.writer
        images, gateway = services.images, services.gateway
        self._bus = services.bus
        self._writer = writer
        self.launch = LaunchLoop(
            stores.sessions,
            writer,
            gateway,
            clock,
            settings.sessions,
            services.dotfiles,
            images.pulls if images is not None else None,
            services.sealer.derive,
            partial(open_environ, services.sealer),
        )
        self.schedule = ScheduleLoop(
            stores.sessions,
            stores.agents,
            stores.identities,
            stores.resource_groups,
            writer,
            clock,
            settings.sessions,
            stores.shares,
            services.devices,
            rng,
            images=images.service if images is not None else None,
            key_id=services.sealer.newest_id,
        )
        services.resource_groups.after_change.append(self.schedule)
        services.agents.after_change.append(self.schedule)
        self.terminate = TerminateLoop(
            stores.sessions, stores.agents, writer, gateway, clock, settings.sessions, settings.agents
        )
        self.watchdog = WatchdogLoop(
            sessions=stores.sessions,
            agents=stores.agents,
            resource_groups=stores.resource_groups,
            writer=writer,
            registry=services.registry,
            clock=clock,
            session_settings=settings.sessions,
            agent_settings=settings.agents,
        )
        self.idle = IdleLoop(stores.sessions, services.idle, writer, clock)
        self.deleted_users = services.deleted_users
        self.webhooks = WebhookLoop(stores.sessions, sender, clock, settings.callbacks)
        serving_stores = [stores.serving] if stores.serving is not None else []
        retention = RetentionLoop(
            stores.sessions,
            stores.answers,
            clock,
            settings.retention,
            stores.errors,
            stores.accounts,
            settings.accounts.sign_ins_days,
            serving_stores,
            services.history,
        )
        folders, artifacts = services.folders, services.artifacts
        self.arrays = ArrayLoop(stores.arrays, writer, self._bus) if stores.arrays is not None else None
        self.claims = ClaimLoop(
            stores.sessions,
            stores.agents,
            stores.identities,
            services.devices,
            self._bus,
            clock,
            settings.agents,
        )
        self._others: list[PeriodicLoop] = [retention, services.ended_apps, self.claims]
        self._others += [self.arrays] if self.arrays is not None else []
        self.serving = services.serving.loop if services.serving is not None else None
        self._stopping = [self.launch.stop, self.terminate.stop, self.webhooks.stop]
        if services.serving is not None and self.serving is not None:
            self._others += [self.serving, services.serving.usage_loop]
            self._stopping.append(self.serving.stop)
        if folders is not None:
            self._others += [folders.loop, folders.quota_loop]
            self._stopping.append(folders.loop.stop)
        if artifacts is not None:
            self._others.append(artifacts.loop)
            self._stopping.append(artifacts.loop.stop)

    def __iter__(self) -> Iterator[PeriodicLoop]:
        yield from (self.schedule, self.launch, self.terminate, self.watchdog, self.idle, self.deleted_users)
        yield self.webhooks
        yield from self._others

    def run(self) -> list[Coroutine[Any, Any, None]]:
        """Returns the coroutines of the loops and of the reader of the bus, to be run until they are cancelled."""
        return [self._wake_by_messages(), *(periodic_loop.run() for periodic_loop in self)]

    async def stop(self) -> None:
        """Cancels the work of the loops; the next leader continues it."""
        for stop_loop in self._stopping:
            await stop_loop()

    async def _wake_by_messages(self) -> None:
        with self._bus.subscribe(
            SCHEDULE, LAUNCH, TERMINATE, CALLBACK, ARRAY, SERVING, CLAIM, limit=_MAX_MESSAGES
        ) as messages:
            while True:
                self._dispatch(*await messages.get())

    def _dispatch(self, topic: str, payload: Any) -> None:
        launched_session = self._writer.written_session(payload) if topic == LAUNCH and payload is not None else None
        if launched_session is not None:
            self.launch.push(launched_session)
        elif topic == TERMINATE and isinstance(payload, DestroyKernels):
            self.terminate.push(payload)
        elif topic == ARRAY:
            if self.arrays is not None:
                self.arrays.wake()
        elif topic == SERVING:
            if self.serving is not None:
                self.serving.wake()
        else:
            loop_of_topic = {
                SCHEDULE: self.schedule,
                LAUNCH: self.launch,
                CALLBACK: self.webhooks,
                CLAIM: self.claims,
            }
            loop_of_topic.get(topic, self.terminate).wake()
