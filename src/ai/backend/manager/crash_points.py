"""The places at which a kill test may end the manager, see ``plugin.crash_points``."""

from __future__ import annotations


def _before_and_after(*steps: str) -> tuple[str, ...]:
    return tuple(f"{side}-{point}" for point in steps for side in ("before", "after"))


SESSION_CRASH_POINTS = _before_and_after(
    *("commit-create", "commit-schedule", "agent-create", "commit-observe", "commit-destroy", "agent-destroy"),
    *("commit-terminate", "commit-restart", "agent-restart"),
)
"""Passed by every session that is created, restarted and destroyed, in this order."""

RARE_CRASH_POINTS = (
    *_before_and_after("commit-dispatch", "commit-abandon", "commit-rename", "commit-release", "keep-answer"),
    "database-before-commit",
)
"""Passed if an agent is slow, refuses or is lost, by a renamed session, by held elements of arrays, by calls with a
client token."""

FOLDER_CRASH_POINTS = (
    *_before_and_after("commit-folder"),
    "after-folder-create",
    "after-folder-clone",
    "after-trash-expired",
    "after-folder-delete",
)
"""Passed by the creation, the clone and the end of a virtual folder."""

CLAIM_CRASH_POINTS = _before_and_after("commit-claim")
"""Passed by a device claim that a session leaves, and by the end of its allocation."""

ARTIFACT_CRASH_POINTS = (
    "after-artifact-scan-page",
    "after-artifact-import-requested",
    "after-artifact-begin",
    "after-artifact-downloaded",
    "after-artifact-archived",
    "after-artifact-cleanup-requested",
    "after-artifact-remove",
)
"""Passed by a scan, an import and a cleanup, in this order; each leaves a different state."""

IMAGE_CRASH_POINTS = ("after-image-scan-page",)
"""Passed by a scan of a registry of images."""

SERVING_CRASH_POINTS = (
    *_before_and_after("serving-change"),
    "after-replica-create",
    "after-replica-route",
    "after-endpoint-publish",
    "after-endpoint-remove",
)
"""Passed by an endpoint that is created, served and destroyed."""

CRASH_POINTS = (
    *SESSION_CRASH_POINTS,
    *RARE_CRASH_POINTS,
    *FOLDER_CRASH_POINTS,
    *ARTIFACT_CRASH_POINTS,
    *IMAGE_CRASH_POINTS,
    *SERVING_CRASH_POINTS,
    *CLAIM_CRASH_POINTS,
)
