"""The parts of a machine that its agent uses besides the runtime and the plugins."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ai.backend.agent.kernels.store import DurableState
from ai.backend.agent.metrics.gateway import NodeMeter
from ai.backend.agent.service_ports.gateway import Kits
from ai.backend.common.wire.reports import OverlayReport
from ai.backend.node.linux.ipsec import SecuredLine
from ai.backend.plugin.runtime import RuntimeInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine of one agent.

    Attributes:
        state: the stored state, which survives the agent.
        kits: the kits of the services that every session has.
        meter: measures the node's own resources, which no plugin counts.
        overlay: returns the node's parameters for multi-node networks. Blocks.
        secure: encrypts exactly these lines to other nodes. Blocks; raises OSError.
        wall_clock: returns the seconds since the epoch.
    """

    state: DurableState
    kits: Kits
    meter: NodeMeter
    overlay: Callable[[RuntimeInfo], OverlayReport]
    secure: Callable[[Collection[SecuredLine]], None] | None = None
    wall_clock: Callable[[], float] = time.time
