"""The messages between processes, as msgspec structs."""

import msgspec


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the messages between manager and agent. Unknown fields are ignored."""
