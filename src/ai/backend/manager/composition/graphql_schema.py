"""Builds the GraphQL schema of all features. The first query imports this module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ariadne import load_schema_from_path
from graphql import GraphQLSchema

from ai.backend.manager.agents.graphql import AgentResolvers
from ai.backend.manager.composition.services import Services
from ai.backend.manager.dotfiles.graphql import DotfileResolvers
from ai.backend.manager.folders.graphql import FolderResolvers
from ai.backend.manager.graphql.executor import build_schema
from ai.backend.manager.graphql.resolvers import bindables_of
from ai.backend.manager.identity.graphql import IdentityResolvers
from ai.backend.manager.identity.graphql_members import MemberResolvers
from ai.backend.manager.identity.graphql_tenants import TenantResolvers
from ai.backend.manager.identity.graphql_totp import TotpResolvers
from ai.backend.manager.identity.graphql_users import UserResolvers
from ai.backend.manager.idle.graphql import IdleResolvers
from ai.backend.manager.images.graphql import ImageResolvers
from ai.backend.manager.images.model import Image
from ai.backend.manager.images.service import merge_images
from ai.backend.manager.resource_groups.graphql import ResourceGroupResolvers
from ai.backend.manager.resources.graphql import PresetResolvers
from ai.backend.manager.serving.graphql import ServingResolvers
from ai.backend.manager.serving.graphql_scaling import ScalingResolvers
from ai.backend.manager.sessions.claims.graphql import ClaimResolvers
from ai.backend.manager.sessions.graphql import SessionResolvers
from ai.backend.manager.volumes.graphql import VolumeResolvers


def load_definitions() -> str:
    """Returns the GraphQL definitions of all features, the general ones first."""
    manager_folder = Path(__file__).parents[1]
    files = sorted(manager_folder.rglob("*.graphql"), key=lambda path: (path.parent.name != "graphql", path))
    return "\n".join(load_schema_from_path(str(path)) for path in files)


def load_schema(services: Services) -> GraphQLSchema:
    """Reads the definitions of all features and binds their resolvers."""

    async def load_agent_images() -> Sequence[Image]:
        return merge_images(await services.agents.living_agents())

    resolvers = (
        AgentResolvers(services.agents),
        DotfileResolvers(services.dotfiles),
        FolderResolvers(services.folders, services.identity),
        IdentityResolvers(services.identity),
        TenantResolvers(services.tenants),
        UserResolvers(services.users, services.identity),
        MemberResolvers(services.members),
        TotpResolvers(services.identity, services.users, services.totp),
        IdleResolvers(services.idle),
        ImageResolvers(services.images, load_agent_images),
        ResourceGroupResolvers(services.resource_groups),
        PresetResolvers(services.presets, services.resources),
        SessionResolvers(services.sessions),
        ClaimResolvers(services.claims),
        ServingResolvers(services.serving.service if services.serving is not None else None),
        ScalingResolvers(services.serving.scaling if services.serving is not None else None),
        VolumeResolvers(services.volumes),
    )
    return build_schema(load_definitions(), bindables_of(resolvers))
