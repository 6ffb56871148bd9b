"""The places of an import at which a kill test may end the proxy, see ``infra.crash_points``."""

from __future__ import annotations

CRASH_POINTS = (
    "artifact.planned",
    "artifact.part",
    "artifact.file",
    "artifact.downloaded",
    "artifact.transferred",
    "artifact.verified",
    "artifact.moved",
    "artifact.archived",
    "artifact.published",
    "artifact.deleting",
)
