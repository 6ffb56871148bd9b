"""The places at which a kill test may end the storage proxy, see ``plugin.crash_points``.

Those of a volume are named by the volume, which reports them through its context.
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
"""What the import of an artifact's revision passes, and its removal."""
CRASH_POINTS = (*UPLOAD, *CLONE, *DELETE, *RENAME, *IMPORT)
