"""When kernels have ended."""

from __future__ import annotations

from array import array
from uuid import UUID

_SIZE = 16


class Tombstones:
    """Ids of kernels that have ended, and when, on any clock in seconds.

    There is no object for any of them: what is made when a session ends would keep a part of the memory of the peak in
    which it lived (docs/decisions/0016). Finding one takes microseconds for thousands.
    """

    def __init__(self) -> None:
        self._ids = bytearray()
        self._ended = array("d")

    def add(self, kernel_id: str, at: float) -> None:
        """Raises ValueError for what is no UUID."""
        self.discard(kernel_id)
        self._ids += UUID(kernel_id).bytes
        self._ended.append(at)

    def __contains__(self, kernel_id: str) -> bool:
        return self._find(kernel_id) >= 0

    def __len__(self) -> int:
        return len(self._ended)

    def discard(self, kernel_id: str) -> None:
        """Safe without it."""
        if (place := self._find(kernel_id)) >= 0:
            self._remove(place)

    def older_than(self, limit: float) -> list[str]:
        """Those that have ended before."""
        places = [place for place, at in enumerate(self._ended) if at < limit]
        return [str(UUID(bytes=bytes(self._ids[_SIZE * place : _SIZE * (place + 1)]))) for place in places]

    def _find(self, kernel_id: str) -> int:
        try:
            wanted = UUID(kernel_id).bytes
        except ValueError:
            return -1
        found = self._ids.find(wanted)
        while found % _SIZE and found >= 0:  # two ids may hold a third one between them
            found = self._ids.find(wanted, found + 1)
        return found // _SIZE

    def _remove(self, place: int) -> None:
        del self._ids[_SIZE * place : _SIZE * (place + 1)]
        del self._ended[place]
