"""Defines the public interface of ordering plugins, which decide the order in which pending sessions are tried.

See spec 03-01 "Sokovan". A plugin is a subclass of :class:`AbstractOrder` under the entry point group
:data:`ENTRY_POINT_GROUP`; the ``scheduler`` of a resource group names it. It must be pure: no clock, no IO, no
randomness. :mod:`ai.backend.plugin.testing.ordering` tests an implementation. Agents are chosen by placement plugins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from ai.backend.common.ids import SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionType

SPI_VERSION = 10
ENTRY_POINT_GROUP = "backendai_order_v10"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Describes a pending session.

    ``requested`` is the sum of its ``kernels``, ``scope`` is its domain, project and user.
    """

    session_id: SessionId
    session_type: SessionType
    priority: int
    enqueued_at: datetime
    requested: ResourceSlot
    kernels: int
    scope: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Describes the resources of a resource group: the total of its agents, and what running sessions occupy.

    ``capacity`` is that of the agents. Scopes in ``occupied`` are written ``domain``, ``domain/project`` and
    ``domain/project/user``.
    """

    capacity: ResourceSlot
    occupied: Mapping[str, ResourceSlot]


class AbstractOrder(ABC):
    """The base of ordering plugins, which order the pending sessions of a resource group.

    Made without arguments, once for each manager.
    """

    spi_version: ClassVar[int] = SPI_VERSION

    @abstractmethod
    def order(self, waiting: Sequence[Waiting], usage: Usage) -> Sequence[SessionId]:
        """Returns the sessions in the order in which the scheduler tries them.

        ``waiting`` is ordered by priority, then age; sessions that the result lacks are tried after the others, in that
        order.
        """
