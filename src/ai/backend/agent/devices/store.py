"""The port behind which operators' cordons, and what devices offer as a whole, are stored."""

from __future__ import annotations

from typing import Protocol


class NamedValueStore(Protocol):
    """Stores values by names, durably. A method that raises OSError has changed nothing."""

    def items(self) -> dict[str, bytes]: ...
    def put(self, key: str, value: bytes) -> None: ...
    def delete(self, key: str) -> None: ...
