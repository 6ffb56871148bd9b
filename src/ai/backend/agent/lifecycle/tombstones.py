"""Remembers when kernels ended."""

from __future__ import annotations

from array import array
from uuid import UUID

_SIZE = 16


class Tombstones:
    """Stores when kernels ended in two arrays, without an object for each kernel (docs/decisions/0016)."""

    def __init__(self) -> None:
        self._ids = bytearray()
        self._ended = array("d")

    def add(self, kernel_id: str, at: float) -> None:
        """Adds or replaces a kernel. Raises ValueError if the id is no UUID."""
        self.discard(kernel_id)
        self._ids += UUID(kernel_id).bytes
        self._ended.append(at)

    def __contains__(self, kernel_id: str) -> bool:
        return self._find(kernel_id) >= 0

    def __len__(self) -> int:
        return len(self._ended)

    def discard(self, kernel_id: str) -> None:
        """Removes a kernel, if it is stored."""
        if (index := self._find(kernel_id)) >= 0:
            del self._ids[_SIZE * index : _SIZE * (index + 1)]
            del self._ended[index]

    def older_than(self, limit: float) -> list[str]:
        """Returns the kernels that ended before ``limit``."""
        indexes = [index for index, at in enumerate(self._ended) if at < limit]
        return [str(UUID(bytes=bytes(self._ids[_SIZE * index : _SIZE * (index + 1)]))) for index in indexes]

    def _find(self, kernel_id: str) -> int:
        try:
            encoded = UUID(kernel_id).bytes
        except ValueError:
            return -1
        offset = self._ids.find(encoded)
        while offset % _SIZE and offset >= 0:  # the same bytes may lie across two ids
            offset = self._ids.find(encoded, offset + 1)
        return offset // _SIZE
