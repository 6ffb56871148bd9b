"""Installs plugins of the tests as a package would, by the metadata of a distribution on the path."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

import pytest

PLUGINS: Mapping[str, Mapping[str, str]] = {
    "backendai_hook_v10": {
        "site-token": "tests.plugins.site_hooks:TokenSignOn",
        "policy": "tests.plugins.site_hooks:SitePolicy",
        "wrong": "pathlib:Path",
        "missing": "no.such.module:Hook",
    },
    "backendai_order_v10": {"smallest-first": "tests.plugins.smallest_first:SmallestFirst"},
    "backendai_object_storage_v1": {"sqlite": "tests.plugins.sqlite_storage:SqliteStorage"},
    "backendai_runtime_v1": {"bare": "tests.plugins.bare_runtime:BareRuntime"},
}


def install_plugins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the entry points of :data:`PLUGINS` visible until the end of the test."""
    metadata = folder / "site_plugins-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: site-plugins\nVersion: 1.0\n")
    sections = [
        "\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in named.items())]) for group, named in PLUGINS.items()
    ]
    (metadata / "entry_points.txt").write_text("\n\n".join(sections) + "\n")
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
