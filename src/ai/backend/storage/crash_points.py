"""Names the crash points of the storage proxy, see ``plugin.crash_points``.

Volumes report theirs through their context.
"""

from __future__ import annotations

UPLOAD = ("upload.written", "upload.synced", "upload.renamed")
CLONE = ("clone.marked", "clone.file", "clone.copied", "clone.published")
DELETE = ("delete.unmarked", "delete.renamed", "delete.one")
RENAME = ("rename.done",)
IMPORT = (
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
"""Crash points of imports and removals of artifacts."""
CRASH_POINTS = (*UPLOAD, *CLONE, *DELETE, *RENAME, *IMPORT)
