"""The tables of all features, gathered in one metadata."""

from __future__ import annotations

from ai.backend.manager.agents import tables as agents
from ai.backend.manager.artifacts import tables as artifacts
from ai.backend.manager.db.metadata import metadata
from ai.backend.manager.dotfiles import tables as dotfiles
from ai.backend.manager.folders import tables as folders
from ai.backend.manager.idempotency import tables as idempotency
from ai.backend.manager.identity import tables as identity
from ai.backend.manager.idle import tables as idle
from ai.backend.manager.images import tables as images
from ai.backend.manager.leadership import tables as leadership
from ai.backend.manager.logs import tables as logs
from ai.backend.manager.resource_groups import tables as resource_groups
from ai.backend.manager.resources import sql as resources
from ai.backend.manager.scheduling import tables as scheduling
from ai.backend.manager.sessions import tables as sessions
from ai.backend.manager.tasks import tables as tasks
from ai.backend.manager.templates import tables as templates

_DECLARED = (
    agents,
    artifacts,
    dotfiles,
    folders,
    idempotency,
    identity,
    idle,
    images,
    leadership,
    logs,
    resource_groups,
    resources,
    scheduling,
    sessions,
    tasks,
    templates,
)
"""Importing a module of tables declares them in the metadata."""

__all__ = ["metadata"]
