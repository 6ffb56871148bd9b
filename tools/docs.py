"""Regenerate the references that are written from the code.

Every generator is a function that returns the whole text of one file. The package that knows the
facts owns the function; this module only knows where its text goes.

Usage: python -m tools.docs            write what changed, and name it
       python -m tools.docs --check    write nothing; name what is out of date and exit 1
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

# file -> "module:function" that returns its text, or "module:function(word)" for a function of one word
GENERATORS: dict[str, str] = {
    "src/ai/backend/manager/db/migrations/fresh.sqlite.sql": "tools.fresh_schema:sql(ai.backend.manager.db)",
    "src/ai/backend/appproxy/coordinator/db/migrations/fresh.sqlite.sql": (
        "tools.fresh_schema:sql(ai.backend.appproxy.coordinator.db)"
    ),
    "docs/reference/state-machines.md": "ai.backend.core.lifecycle.diagram:render",
    "docs/reference/rpc.md": "tools.rpc_page:page",
    "docs/reference/permissions.md": "ai.backend.manager.access.permissions:page",
    "docs/reference/rooms.md": "tools.rooms_page:render",
    "docs/reference/rest.md": "tools.api_pages:rest_page",
    "docs/reference/graphql.md": "tools.api_pages:graphql_page",
    "docs/reference/openapi.json": "ai.backend.manager.composition.api_reference:openapi_json",
    "docs/reference/cli.md": "ai.backend.cli.reference:render",
    "docs/reference/accelerators/families.md": "ai.backend.accelerator.sysfs.reference:families_page",
    "docs/reference/accelerators/host-protocol.md": "tools.host_protocol_page:page",
    "docs/reference/accelerators/types.md": "tools.plugin_types_page:page",
    "docs/reference/accelerators/proofs.md": "tools.proofs_page:page",
    "docs/reference/settings.md": "tools.settings_pages:page",
    "docs/reference/samples/manager.toml": "tools.settings_pages:sample(manager)",
    "docs/reference/samples/manager.schema.json": "tools.settings_pages:schema(manager)",
    "docs/reference/samples/agent.toml": "tools.settings_pages:sample(agent)",
    "docs/reference/samples/agent.schema.json": "tools.settings_pages:schema(agent)",
    "docs/reference/samples/storage-proxy.toml": "tools.settings_pages:sample(storage-proxy)",
    "docs/reference/samples/storage-proxy.schema.json": "tools.settings_pages:schema(storage-proxy)",
    "docs/reference/samples/proxy-coordinator.toml": "tools.settings_pages:sample(proxy-coordinator)",
    "docs/reference/samples/proxy-coordinator.schema.json": "tools.settings_pages:schema(proxy-coordinator)",
    "docs/reference/samples/proxy-worker.toml": "tools.settings_pages:sample(proxy-worker)",
    "docs/reference/samples/proxy-worker.schema.json": "tools.settings_pages:schema(proxy-worker)",
    "deploy/helm/kube-acc/templates/access.yaml": "ai.backend.kubeacc.policies.admission:chart_access_yaml",
    "deploy/helm/kube-acc/templates/crds.yaml": "ai.backend.kubeacc.crd.definitions:crds_yaml",
    "docs/reference/coordinator-openapi.json": "ai.backend.appproxy.coordinator.composition:openapi_json",
    "docs/reference/samples/webserver.toml": "tools.settings_pages:sample(webserver)",
    "docs/reference/samples/webserver.schema.json": "tools.settings_pages:schema(webserver)",
    "docs/ko/README.md": "tools.translations:page(README.md)",
    "docs/ko/tutorial/first-session.md": "tools.translations:page(tutorial/first-session.md)",
    "docs/ko/howto/reach-services.md": "tools.translations:page(howto/reach-services.md)",
    "docs/ko/howto/run-a-cluster.md": "tools.translations:page(howto/run-a-cluster.md)",
    "docs/ko/howto/run-in-docker.md": "tools.translations:page(howto/run-in-docker.md)",
    "docs/ko/howto/sdk.md": "tools.translations:page(howto/sdk.md)",
    "docs/ko/howto/use-folders.md": "tools.translations:page(howto/use-folders.md)",
}


def render(source: str) -> str:
    """Call one generator and return its text, with exactly one newline at its end."""
    module, _, called = source.partition(":")
    function, _, word = called.removesuffix(")").partition("(")
    text = getattr(importlib.import_module(module), function)(*([word] if word else []))
    if not isinstance(text, str):
        raise TypeError(f"{source} must return the text of a file, not {type(text).__name__}")
    return text.rstrip("\n") + "\n"


def outdated(root: Path, generators: dict[str, str]) -> dict[str, str]:
    """Return the files that differ from what their generator says: path -> the text that belongs there."""
    texts: dict[str, str] = {}
    for name, source in generators.items():
        text = render(source)
        path = root / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            texts[name] = text
    return texts


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Regenerate the references that are written from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if anything is out of date")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    args = parser.parse_args(argv)
    texts = outdated(args.root, GENERATORS)
    for name, text in texts.items():
        if args.check:
            sys.stderr.write(f"docs: {name} is out of date; run `python -m tools.docs` and commit it\n")
            continue
        path: Path = args.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"docs: wrote {name}\n")
    return 1 if args.check and texts else 0


if __name__ == "__main__":
    sys.exit(main())
