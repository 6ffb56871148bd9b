"""The base class of durable records and their version."""

from __future__ import annotations

import msgspec

RECORD_VERSION = 1


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of durable records."""
