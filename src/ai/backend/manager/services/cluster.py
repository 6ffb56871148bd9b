"""The cluster as users and administrators see it: agents, slots, images, presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ai.backend.manager.model.cluster import Agent, Image, PresetCheck, ResourcePreset, SlotTypeInfo
from ai.backend.manager.model.identity import Caller
from ai.backend.manager.model.query import ListQuery, Page


class ClusterService:
    async def agents(
        self, caller: Caller, query: ListQuery, *, status: str | None = None, scaling_group: str | None = None
    ) -> Page[Agent]:
        """Superadmins and monitors; an empty page for others. Live statistics are filled in."""
        raise NotImplementedError

    async def agent(self, caller: Caller, agent_id: str) -> Agent:
        raise NotImplementedError

    async def slot_types(self) -> Sequence[SlotTypeInfo]:
        """Every slot that was ever reported (``/config/resource-slots``)."""
        raise NotImplementedError

    async def images(self) -> Sequence[Image]:
        """What the living agents offer, merged by name and architecture."""
        raise NotImplementedError

    async def presets(self) -> Sequence[ResourcePreset]:
        raise NotImplementedError

    async def check_presets(
        self, caller: Caller, *, group: str | None = None, scaling_group: str | None = None
    ) -> PresetCheck:
        raise NotImplementedError

    def metrics_snapshot(self) -> Mapping[str, float]:
        """Gauges for ``/metrics``: name -> value."""
        raise NotImplementedError
