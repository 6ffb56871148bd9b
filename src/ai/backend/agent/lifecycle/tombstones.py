"""Stores the times at which kernels ended."""

from __future__ import annotations

from array import array
from uuid import UUID

_ID_BYTES = 16


class Tombstones:
    """Stores the end times of kernels in two arrays, without an object for each kernel (docs/decisions/0016)."""

    def __init__(self) -> None:
        self._ids = bytearray()
        self._ended = array("d")

    def add(self, kernel_id: str, ended_at: float) -> None:
        """Adds or replaces the time at which a kernel ended. Raises ValueError if the id is no UUID."""
        self.discard(kernel_id)
        self._ids += UUID(kernel_id).bytes
        self._ended.append(ended_at)

    def __contains__(self, kernel_id: str) -> bool:
        return self._index_of(kernel_id) >= 0

    def __len__(self) -> int:
        return len(self._ended)

    def discard(self, kernel_id: str) -> None:
        """Removes a kernel's end time, if stored."""
        if (index := self._index_of(kernel_id)) >= 0:
            del self._ids[_ID_BYTES * index : _ID_BYTES * (index + 1)]
            del self._ended[index]

    def older_than(self, ended_before: float) -> list[str]:
        """Returns the kernels that ended before ``ended_before``."""
        indexes = [index for index, ended_at in enumerate(self._ended) if ended_at < ended_before]
        return [str(UUID(bytes=bytes(self._ids[_ID_BYTES * index : _ID_BYTES * (index + 1)]))) for index in indexes]

    def _index_of(self, kernel_id: str) -> int:
        try:
            encoded_id = UUID(kernel_id).bytes
        except ValueError:
            return -1
        offset = self._ids.find(encoded_id)
        while offset % _ID_BYTES and offset >= 0:  # the same bytes may lie across two ids
            offset = self._ids.find(encoded_id, offset + 1)
        return offset // _ID_BYTES
