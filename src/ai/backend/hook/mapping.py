"""Maps groups of a directory or identity provider to domains and projects.

Nothing here gives a role: a group whose name is ``superadmin`` is a name as any other.
"""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field

from ai.backend.plugin.hooks import HookDenied, SiteUser
from ai.backend.plugin.settings import PluginSettings


class GroupRule(PluginSettings):
    """Holds the domain and the projects that the members of a group are in."""

    domain: str = Field("default", min_length=1, description="The domain that members are in.")
    projects: list[str] = Field([], description="The projects of that domain that members are in.")


class MappingSettings(PluginSettings):
    """Holds the settings of accounts and groups that the sign-in plugins have in common."""

    groups: dict[str, GroupRule] = Field({}, description="Rules by the name of a group; other groups mean nothing.")
    requires_group: bool = Field(False, description="Whether only members of one of these groups sign in.")
    creates_users: bool = Field(True, description="Whether an unknown user gets an account at the first sign-in.")
    admits_admins: bool = Field(
        False,
        description="Whether administrators sign in this way too. Whoever governs the service, or an e-mail address "
        "there, then governs the installation.",
    )


def site_user(
    settings: MappingSettings, *, email: str, username: str, full_name: str, groups: Collection[str]
) -> SiteUser:
    """Returns a user with the domain and projects to which the user's groups lead. Raises HookDenied: no group admits
    them, or their groups are of several domains.
    """
    matching_rules = [settings.groups[group_name] for group_name in sorted({*groups} & settings.groups.keys())]
    if settings.requires_group and not matching_rules:
        raise HookDenied("None of your groups may sign in here.")
    domains = {rule.domain for rule in matching_rules}
    if len(domains) > 1:
        raise HookDenied("Your groups are of several domains: tell an administrator.")
    domain_name = next(iter(domains), None)
    managed_rules = (rule for rule in settings.groups.values() if domain_name in (None, rule.domain))
    return SiteUser(
        email=email,
        username=username,
        full_name=full_name,
        domain_name=domain_name,
        project_names=tuple(dict.fromkeys(group_name for rule in matching_rules for group_name in rule.projects)),
        managed_projects=tuple(dict.fromkeys(group_name for rule in managed_rules for group_name in rule.projects)),
        may_create=settings.creates_users,
        may_be_admin=settings.admits_admins,
    )
