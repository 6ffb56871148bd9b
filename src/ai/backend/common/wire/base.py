"""The base class of wire structs."""

from __future__ import annotations

import msgspec


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of wire structs."""
