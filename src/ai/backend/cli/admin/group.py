"""The groups of `backend.ai admin`."""

from __future__ import annotations

from ai.backend.cli.framework.lazy import Entry, LazyGroup

_MANAGER_MODULE = "ai.backend.cli.admin.manager:"
_TENANTS_MODULE = "ai.backend.cli.admin.tenants:"
_USERS_MODULE = "ai.backend.cli.admin.users:"
_POLICIES_MODULE = "ai.backend.cli.admin.policies:"
_FOLDERS_MODULE = "ai.backend.cli.vfolder.admin:"
_QUOTAS = "ai.backend.cli.vfolder.quotas:"

admin = LazyGroup(
    "admin",
    help="What administrators see and change.",
    entries={
        "agent": Entry("ai.backend.cli.admin.agents:agent", "Agents: their resources, and which limits they enforce."),
        "keypair": Entry(_USERS_MODULE + "admin_keypair", "Keypairs."),
        "explain": Entry("ai.backend.cli.admin.explain:explain", "All about a session: life, errors, logs of daemons."),
        "session": Entry("ai.backend.cli.session.group:admin_session", "Sessions of all users."),
        "image": Entry("ai.backend.cli.image.admin:admin_image", "Images of container registries."),
        "artifact": Entry("ai.backend.cli.artifact.admin:admin_artifact", "Where artifacts come from."),
        "manager": Entry(_MANAGER_MODULE + "manager", "The manager."),
        "announcement": Entry(_MANAGER_MODULE + "announcement", "The announcement for all users."),
        "watcher": Entry(_MANAGER_MODULE + "watcher", "Start and stop agents by their watchers."),
        "resource": Entry("ai.backend.cli.admin.cluster:admin_resource", "What there is, and what was used."),
        "etcd": Entry(_MANAGER_MODULE + "etcd", "The shared configuration."),
        "vfolder": Entry(_FOLDERS_MODULE + "vfolder", "Folders of all users."),
        "storage": Entry(_FOLDERS_MODULE + "storage", "The volumes of the storage proxies."),
        "permission": Entry(_FOLDERS_MODULE + "permission", "What may be done on a storage host."),
        "quota-scope": Entry(_QUOTAS + "quota_scope", "How much a user or a project may keep on a storage host."),
        "user": Entry(_USERS_MODULE + "user", "Users."),
        "domain": Entry(_TENANTS_MODULE + "domain", "Domains."),
        "group": Entry(_TENANTS_MODULE + "group", "Groups, also called projects."),
        "scaling-group": Entry(
            _POLICIES_MODULE + "resource_group", "Resource groups: which agents are scheduled together, and how."
        ),
        "resource-group": Entry(_POLICIES_MODULE + "resource_group", "The same as scaling-group."),
        "keypair-resource-policy": Entry(_POLICIES_MODULE + "keypair_policy", "What keypairs may have."),
        "resource-preset": Entry(_POLICIES_MODULE + "preset", "Named sets of resources."),
        "user-resource-policy": Entry(_QUOTAS + "user_policy", "Storage limits of users."),
        "project-resource-policy": Entry(_QUOTAS + "project_policy", "Storage limits of groups."),
    },
)
