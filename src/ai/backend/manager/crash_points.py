"""The places at which a kill test may end the manager, see ``plugin.crash_points``."""

from __future__ import annotations


def _around(*steps: str) -> tuple[str, ...]:
    return tuple(f"{when}-{step}" for step in steps for when in ("before", "after"))


SESSION_CRASH_POINTS = _around(
    "commit-create",
    "commit-schedule",
    "agent-create",
    "commit-observe",
    "commit-destroy",
    "agent-destroy",
    "commit-terminate",
    "commit-restart",
    "agent-restart",
)
"""What every session that is created, perhaps restarted, and destroyed passes, in this order."""

RARE_CRASH_POINTS = (
    *_around("commit-dispatch", "commit-abandon", "commit-rename", "keep-answer"),
    "database-before-commit",
)
"""What is passed when an agent is slow, refuses or is lost, when a session is renamed, and by every call with a client
token."""

FOLDER_CRASH_POINTS = (
    *_around("commit-folder"),
    "after-folder-create",
    "after-folder-clone",
    "after-trash-expired",
    "after-folder-delete",
)
"""What the creation, the clone and the end of a virtual folder pass."""

ARTIFACT_CRASH_POINTS = (
    "after-artifact-scan-page",
    "after-artifact-import-requested",
    "after-artifact-begin",
    "after-artifact-downloaded",
    "after-artifact-archived",
    "after-artifact-cleanup-requested",
    "after-artifact-remove",
)
"""What a scan, an import and a cleanup pass, in this order: each leaves something else behind."""

IMAGE_CRASH_POINTS = ("after-image-scan-page",)
"""What a scan of a registry of images passes."""

CRASH_POINTS = (
    *SESSION_CRASH_POINTS,
    *RARE_CRASH_POINTS,
    *FOLDER_CRASH_POINTS,
    *ARTIFACT_CRASH_POINTS,
    *IMAGE_CRASH_POINTS,
)
