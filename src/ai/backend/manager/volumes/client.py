"""Client of volumes."""

from __future__ import annotations

_VOLUMES_S = 10.0
