"""Where the manager keeps things."""

from __future__ import annotations

from dataclasses import dataclass, field

from ai.backend.infra.config_store import ConfigStore, MemoryConfigStore, SQLiteConfigStore
from ai.backend.infra.database import Database
from ai.backend.manager.adapters.db.activity_store import SqlActivityStore, SqlErrorLogStore
from ai.backend.manager.adapters.db.answer_store import SqlAnswerStore
from ai.backend.manager.adapters.db.artifact_store import SqlArtifactStore
from ai.backend.manager.adapters.db.cluster_store import SqlAgentStore, SqlJournalStore
from ai.backend.manager.adapters.db.folder_store import SqlFolderStore
from ai.backend.manager.adapters.db.identity_store import SqlIdentityStore
from ai.backend.manager.adapters.db.image_store import SqlImageStore
from ai.backend.manager.adapters.db.lease_store import SqlLeaseStore
from ai.backend.manager.adapters.db.sealing import Sealer
from ai.backend.manager.adapters.db.session_default_store import SqlDotfileStore, SqlTemplateStore
from ai.backend.manager.adapters.db.session_store import SqlSessionStore
from ai.backend.manager.adapters.db.share_store import SqlShareStore
from ai.backend.manager.adapters.db.usage_store import SqlUsageStore
from ai.backend.manager.adapters.memory.answer_store import MemoryAnswerStore
from ai.backend.manager.adapters.memory.session_default_store import (
    MemoryActivityStore,
    MemoryDotfileStore,
    MemoryErrorLogStore,
    MemoryTemplateStore,
)
from ai.backend.manager.adapters.memory.share_store import MemoryShareStore
from ai.backend.manager.ports.activity_store import ActivityStore
from ai.backend.manager.ports.artifact_store import ArtifactStore
from ai.backend.manager.ports.error_log_store import ErrorLogStore
from ai.backend.manager.ports.folder_store import FolderStore
from ai.backend.manager.ports.identity_store import IdentityStore
from ai.backend.manager.ports.images import ImageStore
from ai.backend.manager.ports.leases import LeaseStore
from ai.backend.manager.ports.session_defaults import DotfileStore, TemplateStore
from ai.backend.manager.ports.share_store import ShareStore
from ai.backend.manager.ports.stores import AgentStore, AnswerStore, AuditStore, SessionStore, TaskStore
from ai.backend.manager.ports.usage_store import UsageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Where the manager keeps things; one database in production, memory in simulations."""

    sessions: SessionStore
    agents: AgentStore
    identities: IdentityStore
    tasks: TaskStore
    audit: AuditStore
    config: ConfigStore = field(default_factory=MemoryConfigStore)
    answers: AnswerStore = field(default_factory=MemoryAnswerStore)
    templates: TemplateStore = field(default_factory=MemoryTemplateStore)
    dotfiles: DotfileStore = field(default_factory=MemoryDotfileStore)
    activities: ActivityStore = field(default_factory=MemoryActivityStore)
    errors: ErrorLogStore = field(default_factory=MemoryErrorLogStore)
    shares: ShareStore = field(default_factory=MemoryShareStore)
    folders: FolderStore | None = None
    artifacts: ArtifactStore | None = None
    images: ImageStore | None = None
    usage: UsageStore | None = None
    leases: LeaseStore | None = None
    """Where several managers share the stores, and one of them runs the loops."""

    @classmethod
    def sql(cls, database: Database, sealer: Sealer | None = None, config: ConfigStore | None = None) -> Stores:
        journal = SqlJournalStore(database)
        return cls(
            leases=SqlLeaseStore(database) if database.is_shared else None,
            sessions=SqlSessionStore(database),
            agents=SqlAgentStore(database),
            identities=SqlIdentityStore(database, sealer),
            tasks=journal,
            audit=journal,
            config=config or SQLiteConfigStore(database),
            answers=SqlAnswerStore(database, sealer),
            templates=SqlTemplateStore(database),
            dotfiles=SqlDotfileStore(database),
            activities=SqlActivityStore(database),
            errors=SqlErrorLogStore(database),
            shares=SqlShareStore(database),
            folders=SqlFolderStore(database),
            artifacts=SqlArtifactStore(database, sealer),
            images=SqlImageStore(database),
            usage=SqlUsageStore(database),
        )
