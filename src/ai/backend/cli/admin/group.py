"""The groups of `backend.ai admin`."""

from __future__ import annotations

from ai.backend.cli.framework.lazy import Entry, LazyGroup

_MANAGER = "ai.backend.cli.admin.manager:"
_TENANTS = "ai.backend.cli.admin.tenants:"
_USERS = "ai.backend.cli.admin.users:"
_POLICIES = "ai.backend.cli.admin.policies:"
_FOLDERS = "ai.backend.cli.vfolder.admin:"
_QUOTA = "ai.backend.cli.vfolder.quotas:"

admin = LazyGroup(
    "admin",
    help="What administrators see and change.",
    entries={
        "agent": Entry("ai.backend.cli.admin.agents:agent", "Agents: their resources, and which limits they enforce."),
        "keypair": Entry(_USERS + "admin_keypair", "Keypairs."),
        "session": Entry("ai.backend.cli.session.group:admin_session", "Sessions of all users."),
        "image": Entry("ai.backend.cli.image.admin:admin_image", "Images of container registries."),
        "artifact": Entry("ai.backend.cli.artifact.admin:admin_artifact", "Where artifacts come from."),
        "manager": Entry(_MANAGER + "manager", "The manager."),
        "announcement": Entry(_MANAGER + "announcement", "The announcement for all users."),
        "watcher": Entry(_MANAGER + "watcher", "Start and stop agents by their watchers."),
        "resource": Entry("ai.backend.cli.admin.cluster:admin_resource", "What there is, and what was used."),
        "etcd": Entry(_MANAGER + "etcd", "The shared configuration."),
        "vfolder": Entry(_FOLDERS + "vfolder", "Folders of all users."),
        "storage": Entry(_FOLDERS + "storage", "The volumes of the storage proxies."),
        "permission": Entry(_FOLDERS + "permission", "What may be done on a storage host."),
        "quota-scope": Entry(_QUOTA + "quota_scope", "How much a user or a project may keep on a storage host."),
        "user": Entry(_USERS + "user", "Users."),
        "domain": Entry(_TENANTS + "domain", "Domains."),
        "group": Entry(_TENANTS + "group", "Groups, also called projects."),
        "scaling-group": Entry(
            _POLICIES + "resource_group", "Resource groups: which agents are scheduled together, and how."
        ),
        "resource-group": Entry(_POLICIES + "resource_group", "The same as scaling-group."),
        "keypair-resource-policy": Entry(_POLICIES + "keypair_policy", "What keypairs may have."),
        "resource-preset": Entry(_POLICIES + "preset", "Named sets of resources."),
        "user-resource-policy": Entry(_QUOTA + "user_policy", "Storage limits of users."),
        "project-resource-policy": Entry(_QUOTA + "project_policy", "Storage limits of groups."),
    },
)
