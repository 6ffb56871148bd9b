"""The groups of `backend.ai admin`, and `backend.ai resource`."""

from __future__ import annotations

from ai.backend.cli.framework.lazy import Entry, LazyGroup

_ADMIN = "ai.backend.cli.admin.cluster:"
_AGENTS = "ai.backend.cli.admin.agents:"
_PEOPLE = "ai.backend.cli.admin.users:"
_TENANTS = "ai.backend.cli.admin.tenants:"
_LIMITS = "ai.backend.cli.admin.policies:"
_OPERATIONS = "ai.backend.cli.admin.manager:"
_USAGE = "ai.backend.cli.admin.usage:"
_QUOTA = "ai.backend.cli.vfolder.quotas:"
_RESOURCE_GROUPS = "ai.backend.cli.admin.resource_groups:resource_group"

admin = LazyGroup(
    "admin",
    help="What administrators see and change.",
    entries={
        "agent": Entry(
            "ai.backend.cli.admin.group:admin_agent", "Agents: their resources, and which limits they enforce."
        ),
        "keypair": Entry("ai.backend.cli.admin.group:admin_keypair", "Keypairs."),
        "session": Entry("ai.backend.cli.session.group:admin_session", "Sessions of all users."),
        "image": Entry("ai.backend.cli.image.admin:admin_image", "Images of container registries."),
        "artifact": Entry("ai.backend.cli.artifact.admin:admin_artifact", "Where artifacts come from."),
        "manager": Entry("ai.backend.cli.admin.group:admin_manager", "The manager."),
        "announcement": Entry(_OPERATIONS + "announcement", "The announcement for all users."),
        "watcher": Entry(_OPERATIONS + "watcher", "Start and stop agents by their watchers."),
        "resource": Entry("ai.backend.cli.admin.group:admin_resource", "What there is, and what was used."),
        "etcd": Entry("ai.backend.cli.admin.group:admin_etcd", "The shared configuration."),
        "vfolder": Entry("ai.backend.cli.vfolder.admin:vfolder", "Folders of all users."),
        "storage": Entry("ai.backend.cli.vfolder.admin:storage", "The volumes of the storage proxies."),
        "permission": Entry("ai.backend.cli.vfolder.admin:permission", "What may be done on a storage host."),
        "quota-scope": Entry(_QUOTA + "quota_scope", "How much a user or a project may keep on a storage host."),
        "user": Entry("ai.backend.cli.admin.users:user", "Users."),
        "domain": Entry(_TENANTS + "domain", "Domains."),
        "group": Entry(_TENANTS + "group", "Groups, also called projects."),
        "scaling-group": Entry(_RESOURCE_GROUPS, "Resource groups: which agents are scheduled together, and how."),
        "resource-group": Entry(_RESOURCE_GROUPS, "The same as scaling-group."),
        "keypair-resource-policy": Entry(_LIMITS + "keypair_policy", "What keypairs may have."),
        "resource-preset": Entry(_LIMITS + "preset", "Named sets of resources."),
        "user-resource-policy": Entry(_QUOTA + "user_policy", "Storage limits of users."),
        "project-resource-policy": Entry(_QUOTA + "project_policy", "Storage limits of groups."),
    },
)
admin_agent = LazyGroup(
    "agent",
    help="Agents.",
    entries={
        "list": Entry(_AGENTS + "agent_list", "List agents."),
        "info": Entry(_AGENTS + "agent_info", "Show an agent and its devices."),
        "update": Entry(_AGENTS + "agent_update", "Let an agent take sessions or not, or move it."),
        "operations": Entry(_AGENTS + "agent_operations", "Show what can be done with devices of an agent."),
        "operate": Entry(_AGENTS + "agent_operate", "Partition, switch, program or attach a device."),
    },
)
admin_keypair = LazyGroup(
    "keypair",
    help="Keypairs.",
    entries={
        "info": Entry(_ADMIN + "keypair_info", "Show your own keypair."),
        "list": Entry(_PEOPLE + "keypair_list", "List keypairs."),
        "add": Entry(_PEOPLE + "keypair_add", "Make a keypair of a user."),
        "update": Entry(_PEOPLE + "keypair_update", "Change a keypair."),
        "activate": Entry(_PEOPLE + "keypair_activate", "Let a keypair sign again."),
        "deactivate": Entry(_PEOPLE + "keypair_deactivate", "Refuse what a keypair signs."),
        "delete": Entry(_PEOPLE + "keypair_delete", "Remove a keypair."),
    },
)
admin_manager = LazyGroup(
    "manager",
    help="The manager.",
    entries={
        "status": Entry(_ADMIN + "manager_status", "Show its status."),
        "freeze": Entry(_OPERATIONS + "freeze", "Take no new sessions."),
        "unfreeze": Entry(_OPERATIONS + "unfreeze", "Take new sessions again."),
        "scheduler": Entry(_OPERATIONS + "scheduler", "Which agents take sessions."),
    },
)
admin_resource = LazyGroup(
    "resource",
    help="What there is, and what was used.",
    entries={
        "query-slots": Entry(_ADMIN + "query_slots", "List the resource slots of the cluster."),
        "vfolder-types": Entry(_USAGE + "vfolder_types", "Show who may own virtual folders."),
        "docker-registries": Entry(_USAGE + "docker_registries", "List registries of images."),
        "recalculate-usage": Entry(_USAGE + "recalculate_usage", "Count again what sessions hold."),
        "usage-per-month": Entry(_USAGE + "usage_per_month", "Show what groups used in a month."),
        "usage-per-period": Entry(_USAGE + "usage_per_period", "Show what a group used from one day to another."),
    },
)
admin_etcd = LazyGroup(
    "etcd",
    help="The shared configuration. In the embedded cluster it lies in the database.",
    entries={
        "get": Entry("ai.backend.cli.admin.config:get", "Show a key, or all below it."),
        "set": Entry("ai.backend.cli.admin.config:set_", "Set a key, or several with a JSON object."),
        "delete": Entry("ai.backend.cli.admin.config:delete", "Remove a key, or all below it."),
    },
)
resource = LazyGroup(
    "resource",
    help="Resource slots and presets.",
    entries={
        "query-slots": Entry(_ADMIN + "query_slots", "List the resource slots of the cluster."),
        "variants": Entry(_ADMIN + "variants", "List what --variant can ask for."),
        "presets": Entry(_ADMIN + "presets", "List resource presets."),
    },
)
