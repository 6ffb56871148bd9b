"""The places at which a kill test may end the proxy, see ``infra.crash_points``.

Those of a volume are named by the volume, which tells of them through its context.
"""

from __future__ import annotations

UPLOAD = ("upload.written", "upload.synced", "upload.renamed")
CLONE = ("clone.marked", "clone.file", "clone.copied", "clone.published")
DELETE = ("delete.unmarked", "delete.renamed", "delete.one")
RENAME = ("rename.done",)
CRASH_POINTS = (*UPLOAD, *CLONE, *DELETE, *RENAME)
