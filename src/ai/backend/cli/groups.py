"""The groups below the root: session, admin, keypair, resource."""

from __future__ import annotations

from ai.backend.cli.lazy import Entry, LazyGroup
from ai.backend.cli.main import SESSION_COMMANDS

_ADMIN = "ai.backend.cli.admin_commands:"
_LIST = Entry("ai.backend.cli.list_command:session_list", "List sessions.")

_TOP = {name: entry for name, entry in SESSION_COMMANDS.items() if name not in {"ps", "start", "rm"}}

session = LazyGroup(
    "session",
    help="Compute sessions, under the names of the published command tree.",
    entries={"create": SESSION_COMMANDS["start"], "list": _LIST, "destroy": SESSION_COMMANDS["rm"], **_TOP},
)

admin = LazyGroup(
    "admin",
    help="What administrators see.",
    entries={
        "agent": Entry("ai.backend.cli.groups:admin_agent", "Agents: their resources, and which limits they enforce."),
        "keypair": Entry("ai.backend.cli.groups:admin_keypair", "Keypairs."),
        "session": Entry("ai.backend.cli.groups:admin_session", "Sessions of all users."),
        "manager": Entry("ai.backend.cli.groups:admin_manager", "The manager."),
        "etcd": Entry("ai.backend.cli.groups:admin_etcd", "The shared configuration."),
    },
)
admin_agent = LazyGroup(
    "agent",
    help="Agents.",
    entries={
        "list": Entry(_ADMIN + "agent_list", "List agents."),
        "info": Entry(_ADMIN + "agent_info", "Show an agent."),
    },
)
admin_keypair = LazyGroup(
    "keypair",
    help="Keypairs.",
    entries={
        "info": Entry(_ADMIN + "keypair_info", "Show your own keypair."),
        "list": Entry(_ADMIN + "keypair_list", "List keypairs."),
    },
)
admin_session = LazyGroup(
    "session", help="Sessions of all users.", entries={"list": _LIST, "info": SESSION_COMMANDS["info"]}
)
admin_manager = LazyGroup(
    "manager", help="The manager.", entries={"status": Entry(_ADMIN + "manager_status", "Show its status.")}
)
admin_etcd = LazyGroup(
    "etcd",
    help="The shared configuration. In the embedded cluster it lies in the database.",
    entries={
        "get": Entry("ai.backend.cli.config_store_commands:get", "Show a key, or all below it."),
        "set": Entry("ai.backend.cli.config_store_commands:set_", "Set a key, or several with a JSON object."),
        "delete": Entry("ai.backend.cli.config_store_commands:delete", "Remove a key, or all below it."),
    },
)
keypair = LazyGroup(
    "keypair", help="Your own keypair.", entries={"info": Entry(_ADMIN + "keypair_info", "Show your own keypair.")}
)
resource = LazyGroup(
    "resource",
    help="Resource slots and presets.",
    entries={
        "query-slots": Entry(_ADMIN + "query_slots", "List the resource slots of the cluster."),
        "presets": Entry(_ADMIN + "presets", "List resource presets."),
    },
)
