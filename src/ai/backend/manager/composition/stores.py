"""Builds the stores of the manager and holds them in one object."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ai.backend.infra.config_store import ConfigStore, MemoryConfigStore, SQLiteConfigStore
from ai.backend.infra.database import Database
from ai.backend.manager.agents.sql import SqlAgentStore
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.arrays.sql import SqlArrayStore
from ai.backend.manager.arrays.store import ArrayStore
from ai.backend.manager.artifacts.sql import SqlArtifactStore, link_artifacts
from ai.backend.manager.artifacts.store import ArtifactStore
from ai.backend.manager.dotfiles.sql import SqlDotfileStore
from ai.backend.manager.dotfiles.store import DotfileStore
from ai.backend.manager.folders.sql import SqlFolderStore, link_mounts
from ai.backend.manager.folders.store import FolderStore
from ai.backend.manager.idempotency.sql import SqlAnswerStore
from ai.backend.manager.idempotency.store import AnswerStore
from ai.backend.manager.identity.sql import SqlIdentityStore
from ai.backend.manager.identity.sql_accounts import SqlAccountStore
from ai.backend.manager.identity.store import AccountStore, IdentityStore
from ai.backend.manager.idle.memory import MemoryActivityStore
from ai.backend.manager.idle.sql import SqlActivityStore
from ai.backend.manager.idle.store import ActivityStore
from ai.backend.manager.images.sql import SqlImageStore
from ai.backend.manager.images.store import ImageStore
from ai.backend.manager.leadership.sql import SqlLeaseStore
from ai.backend.manager.leadership.store import LeaseStore
from ai.backend.manager.logs.sql import SqlAuditStore, SqlErrorLogStore
from ai.backend.manager.logs.store import AuditStore, ErrorLogStore
from ai.backend.manager.maintenance.sql import FeatureSecrets
from ai.backend.manager.maintenance.sql_history import SqlHistoryStore
from ai.backend.manager.maintenance.store import HistoryStore
from ai.backend.manager.resource_groups.sql import SqlResourceGroupStore, remove_links
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.resources.presets import PresetStore
from ai.backend.manager.resources.sql import SqlPresetStore
from ai.backend.manager.scheduling.sql import SqlShareStore
from ai.backend.manager.scheduling.store import ShareStore
from ai.backend.manager.secrets.sealer import Sealer
from ai.backend.manager.serving.sql import RevisionSecrets, SqlServingStore
from ai.backend.manager.serving.sql_usage import SqlEndpointUsageStore
from ai.backend.manager.serving.store import EndpointUsageStore, ServingStore
from ai.backend.manager.sessions.sql import SqlSessionStore
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.tables import LIVE_SESSIONS
from ai.backend.manager.tasks.sql import SqlTaskStore
from ai.backend.manager.tasks.store import TaskStore
from ai.backend.manager.templates.sql import SqlTemplateStore
from ai.backend.manager.templates.store import TemplateStore
from ai.backend.manager.usage.service import UsageStore
from ai.backend.manager.usage.sql import SqlUsageStore

FEATURE_SECRETS: Sequence[FeatureSecrets] = (RevisionSecrets(),)
"""The secrets of features that ``maintenance`` cannot import, since they are above it."""


class Stores(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the stores of a manager, in one database in production and in memory in simulations."""

    sessions: SessionStore
    agents: AgentStore
    presets: PresetStore
    identities: IdentityStore
    accounts: AccountStore
    resource_groups: ResourceGroupStore
    tasks: TaskStore
    audit: AuditStore
    config: ConfigStore = msgspec.field(default_factory=MemoryConfigStore)
    answers: AnswerStore
    templates: TemplateStore
    dotfiles: DotfileStore
    activities: ActivityStore = msgspec.field(default_factory=MemoryActivityStore)
    errors: ErrorLogStore
    shares: ShareStore
    folders: FolderStore | None = None
    artifacts: ArtifactStore | None = None
    images: ImageStore | None = None
    usage: UsageStore | None = None
    arrays: ArrayStore | None = None
    serving: ServingStore | None = None
    endpoint_usage: EndpointUsageStore | None = None
    history: HistoryStore | None = None
    leases: LeaseStore | None = None
    """The store of leases if several managers share the stores, so that only one of them runs the loops."""

    @classmethod
    def sql(cls, database: Database, sealer: Sealer | None = None, config: ConfigStore | None = None) -> Stores:
        sessions = SqlSessionStore(database, insert_steps=(link_mounts, link_artifacts))
        return cls(
            leases=SqlLeaseStore(database) if database.is_shared else None,
            sessions=sessions,
            arrays=SqlArrayStore(database, sessions),
            agents=SqlAgentStore(database),
            presets=SqlPresetStore(database),
            identities=SqlIdentityStore(database, sealer, remove_links),
            accounts=SqlAccountStore(database, sealer),
            resource_groups=SqlResourceGroupStore(database),
            tasks=SqlTaskStore(database),
            audit=SqlAuditStore(database),
            config=config or SQLiteConfigStore(database),
            answers=SqlAnswerStore(database, sealer),
            templates=SqlTemplateStore(database),
            dotfiles=SqlDotfileStore(database),
            activities=SqlActivityStore(database),
            errors=SqlErrorLogStore(database),
            shares=SqlShareStore(database),
            folders=SqlFolderStore(database, LIVE_SESSIONS),
            artifacts=SqlArtifactStore(database, LIVE_SESSIONS, sealer),
            images=SqlImageStore(database),
            usage=SqlUsageStore(database),
            serving=SqlServingStore(database),
            endpoint_usage=SqlEndpointUsageStore(database),
            history=SqlHistoryStore(database),
        )
