"""Everything about images of containers, as the API and the composition root receive it."""

from __future__ import annotations

from dataclasses import dataclass

from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.ports.identity_store import IdentityStore
from ai.backend.manager.ports.images import ImageStore, RegistryScanner
from ai.backend.manager.ports.stores import AgentStore
from ai.backend.manager.ports.world import AgentGateway
from ai.backend.manager.services.identity import IdentityService
from ai.backend.manager.services.images.catalogue import Catalogue
from ai.backend.manager.services.images.commits import Commits
from ai.backend.manager.services.images.provision import Provision
from ai.backend.manager.services.images.registries import RegistryBook
from ai.backend.manager.services.images.rescan import Rescan
from ai.backend.manager.services.images.spreading import Spreading
from ai.backend.manager.services.journal import TaskService
from ai.backend.manager.services.lookup import SessionFinder


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    catalogue: Catalogue
    registries: RegistryBook
    rescan: Rescan
    spreading: Spreading
    commits: Commits
    provision: Provision

    @classmethod
    def over(
        cls,
        store: ImageStore,
        scanner: RegistryScanner,
        *,
        config: ConfigStore,
        agents: AgentStore,
        identities: IdentityStore,
        identity: IdentityService,
        finder: SessionFinder,
        gateway: AgentGateway,
        tasks: TaskService,
        clock: Clock,
        id_generator: IdGenerator,
    ) -> Images:
        registries = RegistryBook(config)
        catalogue = Catalogue(store, agents, identities, identity, registries)
        provision = Provision(store, registries)
        rescan = Rescan(store, scanner, registries, tasks, clock)
        return cls(
            catalogue=catalogue,
            registries=registries,
            rescan=rescan,
            spreading=Spreading(catalogue, agents, provision, gateway, tasks, id_generator),
            commits=Commits(store, registries, finder, gateway, tasks, config, clock, id_generator),
            provision=provision,
        )
