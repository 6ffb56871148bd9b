"""What an agent uses of its machine besides the runtime and the plugins."""

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
        state: survives the agent.
        kits: of the services that every session has.
        meter: measures what no plugin counts.
        overlay: how the node takes part in networks over several nodes. Blocks.
        secure: guards these lines to other nodes, and no other ones any more. Blocks; raises OSError.
        wall_clock: seconds since the epoch.
    """

    state: DurableState
    kits: Kits
    meter: NodeMeter
    overlay: Callable[[RuntimeInfo], OverlayReport]
    secure: Callable[[Collection[SecuredLine]], None] | None = None
    wall_clock: Callable[[], float] = time.time
