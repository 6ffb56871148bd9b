"""Puts the GraphQL definitions and resolvers of all features together. Imported by the first query, not at start."""

from __future__ import annotations

from pathlib import Path

from ariadne import load_schema_from_path
from graphql import GraphQLSchema

from ai.backend.manager.agents.graphql import AGENT_BINDABLES
from ai.backend.manager.dotfiles.graphql import DOTFILE_BINDABLES
from ai.backend.manager.folders.graphql import FOLDER_BINDABLES
from ai.backend.manager.graphql.executor import build_schema
from ai.backend.manager.identity.graphql import IDENTITY_BINDABLES
from ai.backend.manager.identity.graphql_tenants import ADMINISTRATION_BINDABLES
from ai.backend.manager.identity.graphql_users import PEOPLE_BINDABLES
from ai.backend.manager.idle.graphql import IDLE_BINDABLES
from ai.backend.manager.images.graphql import IMAGE_BINDABLES
from ai.backend.manager.resource_groups.graphql import RESOURCE_GROUP_BINDABLES
from ai.backend.manager.resources.graphql import RESOURCE_BINDABLES
from ai.backend.manager.sessions.graphql import SESSION_BINDABLES
from ai.backend.manager.volumes.graphql import VOLUME_BINDABLES

_BINDABLES = (
    *AGENT_BINDABLES,
    *DOTFILE_BINDABLES,
    *FOLDER_BINDABLES,
    *IDENTITY_BINDABLES,
    *ADMINISTRATION_BINDABLES,
    *PEOPLE_BINDABLES,
    *IDLE_BINDABLES,
    *IMAGE_BINDABLES,
    *RESOURCE_GROUP_BINDABLES,
    *RESOURCE_BINDABLES,
    *SESSION_BINDABLES,
    *VOLUME_BINDABLES,
)


def definition_files() -> list[Path]:
    """Every file of GraphQL definitions, the general one first."""
    manager = Path(__file__).parents[1]
    return sorted(manager.rglob("*.graphql"), key=lambda path: (path.parent.name != "graphql", path))


def load_schema() -> GraphQLSchema:
    """Read the definitions of all features and bind their resolvers."""
    return build_schema("\n".join(load_schema_from_path(str(path)) for path in definition_files()), _BINDABLES)
