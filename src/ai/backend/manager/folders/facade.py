"""Everything about virtual folders in one value."""

from __future__ import annotations

from dataclasses import dataclass

from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.folders.access import FolderFinder
from ai.backend.manager.folders.files import FolderFiles
from ai.backend.manager.folders.gateway import StorageGateway
from ai.backend.manager.folders.loop import FolderLoop
from ai.backend.manager.folders.mounts import MountResolver
from ai.backend.manager.folders.owner_removal import FolderOwnerRemoval
from ai.backend.manager.folders.quota_loop import QuotaLoop
from ai.backend.manager.folders.quotas import QuotaService
from ai.backend.manager.folders.service import FolderService
from ai.backend.manager.folders.settings import FolderSettings
from ai.backend.manager.folders.sharing import FolderSharing
from ai.backend.manager.folders.store import FolderStore
from ai.backend.manager.folders.unmanaged import UnmanagedPaths
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.tasks.service import TaskService
from ai.backend.manager.volumes.permissions import FolderScopes
from ai.backend.manager.volumes.service import VolumeService


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The use cases, and the loop that keeps rows and directories together."""

    life: FolderService
    files: FolderFiles
    sharing: FolderSharing
    mounts: MountResolver
    quotas: QuotaService
    volumes: VolumeService
    loop: FolderLoop
    quota_loop: QuotaLoop
    leaving: FolderOwnerRemoval

    @classmethod
    def over(
        cls,
        store: FolderStore,
        storage: StorageGateway,
        identities: IdentityStore,
        tasks: TaskService,
        clock: Clock,
        id_generator: IdGenerator,
        settings: FolderSettings,
    ) -> Folders:
        """All of them on one store and its storage proxies."""
        scopes = FolderScopes(identities, storage)
        loop = FolderLoop(store, storage, clock, trash_days=settings.trash_days)
        finder = FolderFinder(store, scopes, loop.transitions)
        quota_loop = QuotaLoop(store, storage)
        unmanaged = UnmanagedPaths(settings.unmanaged_roots)
        return cls(
            life=FolderService(
                store=store,
                storage=storage,
                identities=identities,
                finder=finder,
                scopes=scopes,
                loop=loop,
                quotas=quota_loop,
                tasks=tasks,
                clock=clock,
                id_generator=id_generator,
                unmanaged=unmanaged,
            ),
            leaving=FolderOwnerRemoval(store, loop.transitions),
            files=FolderFiles(storage, finder),
            sharing=FolderSharing(store, identities, finder, clock, id_generator),
            mounts=MountResolver(storage, finder, unmanaged),
            quotas=QuotaService(store, storage, identities, quota_loop),
            volumes=VolumeService(storage),
            loop=loop,
            quota_loop=quota_loop,
        )
