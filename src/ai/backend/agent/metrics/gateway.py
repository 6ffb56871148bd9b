"""What the agent itself measures of its node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ai.backend.plugin.accelerator import Measurement


class NodeMeter(Protocol):
    """Disks and networks: what no accelerator plugin counts."""

    def measure(self) -> Sequence[Measurement]:
        """``disk`` of each file system, ``net_rx`` and ``net_tx`` of each interface. Blocks for a few file reads."""
        ...
