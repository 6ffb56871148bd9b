"""Devices whose plugin has an alloc map of its own: only sums are known here, the agent chooses the devices."""

from __future__ import annotations

from ai.backend.common.ids import DeviceId
from ai.backend.core.allocation.alloc_map import AffinityHint
from ai.backend.core.allocation.ledger import Cell, LedgerAllocMap, Parts, SlotBook

ANY_DEVICE = DeviceId("*")
"""Stands for devices that the agent will choose. Never leaves the planner."""


class OpaqueAllocMap(LedgerAllocMap):
    """Counts each slot's sum over healthy devices as one device, :data:`ANY_DEVICE`."""

    def _choose(self, book: SlotBook, quanta: int, hint: AffinityHint) -> Parts:
        cell = book.cells[ANY_DEVICE]
        if self._free(cell) < quanta:
            raise self._insufficient(book, quanta)
        return [(cell, quanta)]

    def _pool(self, book: SlotBook) -> None:
        amount = sum(c.amount for c in book.cells.values() if c.healthy)
        book.cells = {ANY_DEVICE: Cell(ANY_DEVICE, 0, None, None, True, amount)}

    def pooled(self) -> OpaqueAllocMap:
        """Merge the devices of every slot; call once, before anything is allocated."""
        self._groups = {}
        for book in self._books.values():
            self._pool(book)
        return self
