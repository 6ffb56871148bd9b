"""An order: users who hold the least cores first, and of each the smallest session first."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from ai.backend.common.ids import SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.plugin.ordering import AbstractOrder, Usage, Waiting


class SmallestFirst(AbstractOrder):
    def order(self, waiting: Sequence[Waiting], usage: Usage) -> Sequence[SessionId]:
        def key(session: Waiting) -> tuple[Decimal, Decimal, int]:
            held = usage.occupied.get("/".join(session.scope), ResourceSlot())
            return held["cpu"], session.requested["cpu"], session.session_id.int

        return [session.session_id for session in sorted(waiting, key=key)]
