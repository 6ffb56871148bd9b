"""Replies of execution."""

from __future__ import annotations

import json
from typing import Any

from ai.backend.common.wire.execution import FileListing, RunResult


def run_result(result: RunResult) -> dict[str, Any]:
    """Return the Execution Result Object (spec 03-07)."""
    view: dict[str, Any] = {
        "runId": result.run_id,
        "status": result.status.value,
        "exitCode": result.exit_code,
        "console": result.console,
        "options": result.options,
        "files": [{"url": None, **file} for file in result.files],
    }
    if result.reason is not None:
        view["reason"] = result.reason
    return view


def file_listing(listing: FileListing) -> dict[str, Any]:
    """``files`` is JSON inside of JSON (spec 03-08)."""
    entries = [
        {"filename": e.filename, "size": e.size, "mtime": e.mtime, "mode": e.mode, "kind": e.kind}
        for e in listing.entries
    ]
    return {"files": json.dumps(entries), "folder_path": listing.folder_path, "errors": listing.errors}
