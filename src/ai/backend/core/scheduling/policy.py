"""Defines scheduling policies: maps the names that a resource group stores to functions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ai.backend.common.errors import InvalidInput
from ai.backend.core.scheduling.ordering.queue import ORDERS, Order
from ai.backend.core.scheduling.placement.strategies import PLACEMENTS, Placement, Rng
from ai.backend.core.scheduling.placement.topology import ARRANGEMENTS, Arrangement

__all__ = ["ORDERS", "PLACEMENTS", "SHARED_ORDERS", "Placement", "Policy", "Rng"]

SHARED_ORDERS = frozenset({"drf", "fair-share"})
"""The orders that need the usage of the sessions' owners."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Defines how a resource group schedules, by keys of :data:`ORDERS` and :data:`PLACEMENTS`.

    ``plugged``, ``plugged_order``: a plugin's placement or order, in place of the named one. ``preempts``: a session
    may end preemptible ones of smaller priority to have their place; of equal ones the youngest, or with
    ``oldest_first`` the oldest.
    """

    order: str = "fifo"
    placement: str = "dispersed"
    preempts: bool = False
    oldest_first: bool = False
    plugged: Placement | None = None
    plugged_order: Order | None = None

    def dump(self) -> dict[str, str | bool]:
        """Returns the policy in the form of a dump, which :meth:`of` reads."""
        names = ("order", "placement", "preempts", "oldest_first")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def of(cls, dumped_policy: Mapping[str, str | bool], **changes: str | bool | None) -> Policy:
        """Reads the policy of a dump without checking it. Changes that are not None replace the dumped values."""
        values = {
            **cls().dump(),
            **dumped_policy,
            **{name: value for name, value in changes.items() if value is not None},
        }
        return cls(
            order=str(values["order"]),
            placement=str(values["placement"]),
            preempts=values["preempts"] is True,
            oldest_first=values["oldest_first"] is True,
        )

    @property
    def queue_order(self) -> Order:
        return self.plugged_order or ORDERS[self.order]

    @property
    def needs_usage(self) -> bool:
        """Returns True if the order depends on the usage of the sessions' owners."""
        return self.plugged_order is not None or self.order in SHARED_ORDERS

    @property
    def placement_function(self) -> Placement:
        return self.plugged or PLACEMENTS[self.placement]

    @property
    def arrangement(self) -> Arrangement | None:
        """Returns the arrangement of the kernels of a multi-node session.

        Returns None if the placement has no arrangement.
        """
        return None if self.plugged else ARRANGEMENTS.get(self.placement)

    def check(self) -> None:
        """Checks the names of the order and of the placement. Raises InvalidInput for an unknown order or placement."""
        for name, table, plugin in (
            (self.order, ORDERS, self.plugged_order),
            (self.placement, PLACEMENTS, self.plugged),
        ):
            if name not in table and plugin is None:
                raise InvalidInput(f"unknown scheduling policy {name!r}; known are {', '.join(table)}")
