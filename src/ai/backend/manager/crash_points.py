"""Lists the places in the code at which a kill test may end the manager, see ``plugin.crash_points``."""

from __future__ import annotations


def _points_around(*steps: str) -> tuple[str, ...]:
    return tuple(f"{prefix}-{point}" for point in steps for prefix in ("before", "after"))


SESSION_CRASH_POINTS = _points_around(
    *("commit-create", "commit-schedule", "agent-create", "commit-observe", "commit-destroy", "agent-destroy"),
    *("commit-terminate", "commit-restart", "agent-restart"),
)
"""Points that every session passes when it is created, restarted and destroyed, in this order."""

RARE_CRASH_POINTS = (
    *_points_around("commit-dispatch", "commit-abandon", "commit-rename", "commit-release", "keep-answer"),
    "database-before-commit",
)
"""Points that are passed in rare cases: an agent is slow, refuses or is lost, or a session is renamed. Others are
passed by held elements of arrays and by calls with a client token.
"""

FOLDER_CRASH_POINTS = (
    *_points_around("commit-folder"),
    "after-folder-create",
    "after-folder-clone",
    "after-trash-expired",
    "after-folder-delete",
)
"""Points that are passed when a virtual folder is created, cloned and removed."""

CLAIM_CRASH_POINTS = _points_around("commit-claim")
"""Points that are passed when a session leaves a device claim, and when the claim's allocation ends."""

ARTIFACT_CRASH_POINTS = (
    "after-artifact-scan-page",
    "after-artifact-import-requested",
    "after-artifact-begin",
    "after-artifact-downloaded",
    "after-artifact-archived",
    "after-artifact-cleanup-requested",
    "after-artifact-remove",
)
"""Points that a scan, an import and a cleanup pass in this order; each point leaves a different state."""

IMAGE_CRASH_POINTS = ("after-image-scan-page",)
"""Points that a scan of a registry of images passes."""

SERVING_CRASH_POINTS = (
    *_points_around("serving-change"),
    "after-replica-create",
    "after-replica-route",
    "after-endpoint-publish",
    "after-endpoint-remove",
)
"""Points that are passed when an endpoint is created, served and destroyed."""

CRASH_POINTS = (
    *SESSION_CRASH_POINTS,
    *RARE_CRASH_POINTS,
    *FOLDER_CRASH_POINTS,
    *ARTIFACT_CRASH_POINTS,
    *IMAGE_CRASH_POINTS,
    *SERVING_CRASH_POINTS,
    *CLAIM_CRASH_POINTS,
)
