"""Builds the use cases and loops of virtual folders, and holds them in one object."""

from __future__ import annotations

import msgspec

from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.folders.access import FolderFinder
from ai.backend.manager.folders.files import FolderFiles
from ai.backend.manager.folders.gateway import FolderGateway
from ai.backend.manager.folders.loop import FolderLoop
from ai.backend.manager.folders.model import FolderSettings
from ai.backend.manager.folders.mounts import MountResolver, UnmanagedPaths
from ai.backend.manager.folders.quotas import QuotaLoop, QuotaService
from ai.backend.manager.folders.service import FolderOwnerRemoval, FolderService
from ai.backend.manager.folders.sharing import FolderSharing
from ai.backend.manager.folders.store import FolderStore
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.tasks.service import TaskService
from ai.backend.manager.volumes.gateway import VolumeGateway
from ai.backend.manager.volumes.permissions import FolderScopes


class Folders(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the services and loops of virtual folders."""

    service: FolderService
    files: FolderFiles
    sharing: FolderSharing
    mounts: MountResolver
    quotas: QuotaService
    loop: FolderLoop
    quota_loop: QuotaLoop
    owner_removal: FolderOwnerRemoval

    @classmethod
    def build(
        cls,
        store: FolderStore,
        storage: FolderGateway,
        volumes: VolumeGateway,
        identities: IdentityStore,
        tasks: TaskService,
        clock: Clock,
        id_generator: IdGenerator,
        settings: FolderSettings,
    ) -> Folders:
        """Builds the services and loops of virtual folders from a store and a gateway to storage proxies."""
        scopes = FolderScopes(identities, volumes)
        loop = FolderLoop(store, storage, clock, trash_days=settings.trash_days)
        finder = FolderFinder(store, scopes, loop.transitions)
        quota_loop = QuotaLoop(store, storage)
        unmanaged_paths = UnmanagedPaths(settings.unmanaged_roots)
        return cls(
            service=FolderService(
                store,
                storage,
                volumes,
                identities,
                finder,
                scopes,
                loop,
                quota_loop,
                tasks,
                clock,
                id_generator,
                unmanaged_paths,
            ),
            owner_removal=FolderOwnerRemoval(store, loop.transitions),
            files=FolderFiles(storage, finder),
            sharing=FolderSharing(store, identities, finder, clock, id_generator),
            mounts=MountResolver(storage, finder, unmanaged_paths),
            quotas=QuotaService(store, storage, volumes, identities, quota_loop),
            loop=loop,
            quota_loop=quota_loop,
        )
