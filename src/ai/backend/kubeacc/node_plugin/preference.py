"""Chooses the devices of a container for ``GetPreferredAllocation``: the best links, then one NUMA node."""

from __future__ import annotations

from collections.abc import Sequence

from ai.backend.common.devices import ComputeDevice
from ai.backend.core.allocation.links import Links, links_of


class DevicePreference:
    """Chooses preferred sets among one plugin's devices.

    The choice is that of the manager's planner (decision 0050).
    """

    def __init__(self, devices: Sequence[ComputeDevice], ids: Sequence[str]) -> None:
        """Prepares the choice among devices. ``ids`` are the kubelet's names of ``devices``, in the same order."""
        self._ids = tuple(ids)
        self._rank_of_id = {name: rank for rank, name in enumerate(self._ids)}
        # Without stated links, devices of one NUMA node are nearer to each other than to others.
        self._links = links_of(devices) or Links(tuple(device.numa_node for device in devices), ())

    def choose(self, available_ids: Sequence[str], required_ids: Sequence[str], size: int) -> list[str]:
        """Returns ``size`` of the available devices, including the required ones.

        Returns fewer if there are not enough. Unknown names are left out.
        """
        required_ranks = [self._rank_of_id[name] for name in dict.fromkeys(required_ids) if name in self._rank_of_id]
        available_ranks = [self._rank_of_id[name] for name in dict.fromkeys(available_ids) if name in self._rank_of_id]
        optional_ranks = [rank for rank in available_ranks if rank not in required_ranks]
        missing_count = min(max(0, size - len(required_ranks)), len(optional_ranks))
        free_mask = sum(1 << rank for rank in {*available_ranks, *required_ranks})
        chosen_ranks = (
            self._links.choose(sum(1 << rank for rank in optional_ranks), missing_count, required_ranks, free_mask)
            if missing_count
            else ()
        )
        return [self._ids[rank] for rank in (*required_ranks, *chosen_ranks)]
