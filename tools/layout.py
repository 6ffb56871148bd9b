"""The layout of the source as data: who may import whom. `tools/contracts.py` checks it.

Three tables: the packages by row, the features of each daemon by row, and the tiers of files inside a feature.
Upper rows may import lower rows; packages and features of one row do not import each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

PREFIX = "ai.backend"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli",),
    ("standalone", "simulator"),
    ("manager", "agent", "storage", "appproxy", "web", "kubeacc"),
    ("infra", "client", "accelerator", "runtime", "volume", "hook", "monitor", "pluginhost"),
    ("node",),
    ("plugin",),
    ("core",),
    ("common",),
)
DAEMONS = LAYERS[2]
# The runner inside a workload is in no layer: nothing imports it, and it imports nothing of ours.
STANDING_ALONE = ("runner",)
# Programs inside workloads, and what the hook that builds wheels runs: the standard library alone.
STDLIB_ONLY = ("node.relay", "infra.console")

# Restrictions inside the allowed layers. Only direct imports count.
NEIGHBOURS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("accelerators-see-only-the-spi", ("accelerator",), ("core", "infra", "client", "node")),
    ("runtimes-and-volumes-see-the-spi-and-the-node", ("runtime", "volume"), ("core", "infra", "client")),
    ("hooks-and-monitors-see-only-the-spi", ("hook", "monitor"), ("core", "infra", "client", "node")),
    (
        "simulator-runs-managers-and-agents-alone",
        ("simulator",),
        ("storage", "appproxy", "web", "kubeacc", "client", "runtime", "accelerator", "volume", "hook", "monitor"),
    ),
    ("client-sees-only-common", ("client",), ("core", "plugin", "infra", "node")),
)

FEATURES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "manager": (
        ("server",),
        ("main",),
        ("commands",),
        ("composition",),
        ("config",),
        ("serving", "monitoring"),
        ("scheduling", "execution", "service_ports"),
        ("resources", "idle", "templates", "events", "usage", "maintenance", "arrays", "backup"),
        ("sessions",),
        ("artifacts", "images", "dotfiles"),
        ("folders", "agents"),
        ("volumes", "resource_groups"),
        ("identity",),
        ("graphql", "tasks", "logs", "system", "leadership", "idempotency"),
        ("access", "query", "secrets", "metrics", "db", "storage_proxy", "topics", "hooks", "crash_points"),
    ),
    "agent": (
        ("server", "watcher"),
        ("main",),
        ("shard",),
        ("composition", "watcher_daemon"),
        ("link",),
        ("lifecycle",),
        ("gateway", "images", "metrics", "networks", "service_ports"),
        ("kernels",),
        ("channel", "devices"),
        ("directory", "kit", "runtimes"),
        ("config",),
    ),
    "storage": (
        ("server",),
        ("main",),
        ("artifacts", "folders"),
        ("transfers",),
        ("volumes",),
        ("tasks", "config", "crash_points"),
    ),
    "appproxy.coordinator": (
        ("main",),
        ("composition",),
        ("endpoints",),
        ("circuits",),
        ("workers",),
        ("config", "db", "errors"),
    ),
    "appproxy.worker": (
        ("main",),
        ("composition",),
        ("metrics",),
        ("link",),
        ("planes",),
        ("inference",),
        ("access", "upstreams"),
        ("config",),
    ),
    "web": (
        ("server",),
        ("main",),
        ("composition",),
        ("relay", "pages"),
        ("login",),
        ("managers", "guard", "cookies", "config"),
    ),
    "kubeacc": (
        ("main", "kubectl"),
        ("composition",),
        ("controllers", "node_plugin"),
        ("drivers",),
        ("policies",),
        ("crd",),
    ),
}
"""Features of each daemon, upper rows first. A module or folder that is in no row fails the check."""

# tier -> (patterns of file names, tiers it may import in its feature, tiers it may import of lower features)
TIERS: Mapping[str, tuple[tuple[str, ...], frozenset[str], frozenset[str]]] = {
    "wire": (
        ("api", "*_api", "graphql", "graphql_*", "views", "api_*"),
        frozenset({"wire", "shapes", "facade", "use cases", "ports", "model"}),
        frozenset({"shapes", "wire views", "facade", "use cases", "ports", "model"}),
    ),
    "shapes": (("schemas",), frozenset({"shapes", "model"}), frozenset({"shapes", "model"})),
    "facade": (
        ("facade",),
        frozenset({"use cases", "ports", "model"}),
        frozenset({"facade", "use cases", "ports", "model"}),
    ),
    "adapters": (
        ("sql", "sql_*", "tables", "memory", "memory_*", "client", "*_client"),
        frozenset({"adapters", "ports", "model"}),
        frozenset({"adapters tables", "adapters memory", "adapters client", "ports", "model"}),
    ),
    "ports": (
        ("store", "gateway", "*_gateway"),
        frozenset({"ports", "model"}),
        frozenset({"ports", "model"}),
    ),
    "model": (
        ("model", "settings", "events", "changes", "callbacks", "network"),
        frozenset({"model"}),
        frozenset({"model"}),
    ),
    "use cases": (
        ("*",),
        frozenset({"use cases", "ports", "model"}),
        frozenset({"use cases", "ports", "model"}),
    ),
}
"""Tiers of files inside a feature, by file name; the first pattern that matches decides."""

# Toolkits and wiring: their files are not divided into tiers, and every tier above may import them.
WITHOUT_TIERS: Mapping[str, frozenset[str]] = {
    "manager": frozenset(
        [
            "server",
            "main",
            "commands",
            "composition",
            "config",
            "access",
            "query",
            "secrets",
            "metrics",
            "db",
            "storage_proxy",
            "topics",
            "crash_points",
            "hooks",
            "graphql",
        ]
    ),
    "agent": frozenset(["server", "watcher", "main", "shard", "composition", "directory", "kit", "runtimes", "config"]),
    "storage": frozenset(["server", "main", "tasks", "config", "crash_points"]),
    "appproxy.coordinator": frozenset(["main", "composition", "config", "db", "errors"]),
    "appproxy.worker": frozenset(["main", "composition", "config", "metrics", "upstreams"]),
    "web": frozenset(["server", "main", "composition", "managers", "guard", "cookies", "config"]),
    "kubeacc": frozenset(["main", "composition", "crd", "drivers", "kubectl", "policies"]),
}


def tier_of(file: str) -> str:
    """Return the tier of a file of a feature by its name without suffix."""
    return next(tier for tier, (patterns, _, _) in TIERS.items() if any(fnmatchcase(file, p) for p in patterns))


def row_of(daemon: str, feature: str) -> int | None:
    """Return the row of a feature of a daemon, counted from the top, or None if it is in no row."""
    return next((i for i, row in enumerate(FEATURES[daemon]) if feature in row), None)
