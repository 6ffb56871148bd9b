"""Holds the use cases of container images in one object."""

from __future__ import annotations

import msgspec

from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.agents.store import AgentGateway, AgentStore
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.images.model import RegistryScan
from ai.backend.manager.images.preload import ImagePreloader
from ai.backend.manager.images.registries import ContainerRegistries, ImagePulls
from ai.backend.manager.images.rescan import Rescan
from ai.backend.manager.images.service import ImageService
from ai.backend.manager.images.store import ImageStore
from ai.backend.manager.resource_groups.service import ResourceGroupService
from ai.backend.manager.tasks.service import TaskService


class Images(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the services of container images."""

    service: ImageService
    registries: ContainerRegistries
    rescan: Rescan
    preloader: ImagePreloader
    pulls: ImagePulls

    @classmethod
    def build(
        cls,
        store: ImageStore,
        scan: RegistryScan,
        *,
        config: ConfigStore,
        verifies_tls: bool,
        agents: AgentStore,
        identities: IdentityStore,
        resource_groups: ResourceGroupService,
        gateway: AgentGateway,
        tasks: TaskService,
        clock: Clock,
        id_generator: IdGenerator,
    ) -> Images:
        registries = ContainerRegistries(config, verifies_tls=verifies_tls)
        service = ImageService(store, agents, identities, resource_groups, registries)
        pulls = ImagePulls(store, registries)
        return cls(
            service=service,
            registries=registries,
            rescan=Rescan(store, scan, registries, clock, tasks),
            preloader=ImagePreloader(service, agents, pulls, gateway, tasks, id_generator),
            pulls=pulls,
        )
