"""Resource slots, registries and usage of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ai.backend.client.func.base import Area


class AsyncResource(Area):
    """Reads resource slots, presets and usage (``api_session.Resource``)."""

    async def list_slots(self) -> dict[str, str]:
        """Returns every known slot with the type of its quantity: ``count``, ``bytes`` or ``unique``."""
        return await self._get("/config/resource-slots")

    async def slot_details(self) -> dict[str, dict[str, Any]]:
        """Returns every known slot with what its plugin says about showing it: names, unit, number format."""
        return await self._get("/config/resource-slots/details")

    async def variant_properties(self, scaling_group: str | None = None) -> list[dict[str, Any]]:
        """Lists the variant properties that sessions may require of their devices (``variant_requirements``).

        Each has the number of such ``devices`` in each resource group.
        """
        reply = await self._get("/resource/variant-properties", scaling_group=scaling_group or None)
        return list(reply.get("variant_properties", ()))

    async def plugin_options(self) -> dict[str, list[dict[str, Any]]]:
        """Returns by plugin the JSON Schemas of the options that sessions may give to it (``plugin_options``)."""
        return (await self._get("/resource/plugin-options")).get("plugin_options") or {}

    async def list_presets(self) -> dict[str, Any]:
        return await self._get("/resource/presets")

    async def check_presets(self, *, group: str | None = None, scaling_group: str | None = None) -> dict[str, Any]:
        body = {"group": group or self._transport.config.group, "scaling_group": scaling_group}
        return await self._change("POST", "/resource/check-presets", body)

    async def queue(self, scaling_group: str, *, limit: int = 50, offset: int = 0) -> dict[str, Any]:
        """Returns a page of the waiting sessions of a resource group, in the order in which they will be scheduled.

        It has the sessions that the caller sees, with their places in the whole queue.
        """
        return await self._get("/scheduling/queue", scaling_group=scaling_group, limit=limit, offset=offset)

    async def shares(self, scaling_group: str) -> dict[str, Any]:
        """Returns the fair shares in a resource group that the caller sees, with their weights and decayed use."""
        return await self._get("/scheduling/shares", scaling_group=scaling_group)

    async def fleet(self) -> dict[str, Any]:
        """Returns all agents in a compact form: a row for each agent, and the names of its values in ``columns``."""
        return await self._get("/resource/fleet")

    async def get_docker_registries(self) -> dict[str, Any]:
        """Returns the registries of images by their names."""
        return await self._get("/config/docker-registries")

    async def get_vfolder_types(self) -> list[str]:
        """Lists the kinds of owners of virtual folders: ``user``, ``group``."""
        return list((await self._get_reply("/config/vfolder-types")).json())

    async def recalculate_usage(self) -> dict[str, Any]:
        """Recounts the slots that kernels hold, and returns the agents whose records differ as ``drift``.

        ``drift`` should be empty.
        """
        return await self._send("POST", "/resource/recalculate-usage", {}, repeatable=True)

    async def usage_per_month(self, month: str, group_ids: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Returns the usage of each group in a month (``YYYYMM``, UTC). Without ids it returns all visible groups."""
        body = {"month": month, "group_ids": list(group_ids)}
        return list((await self._get_reply("/resource/usage/month", body)).json())

    async def usage_per_period(self, group_id: str, start_date: str, end_date: str) -> dict[str, Any]:
        """Returns the usage of a group between two days (``YYYYMMDD``, UTC), both included; empty for none."""
        body = {"group_id": group_id, "start_date": start_date, "end_date": end_date}
        return dict((await self._get_reply("/resource/usage/period", body)).json())

    async def user_monthly_stats(self) -> list[dict[str, Any]]:
        """Returns the caller's usage in each quarter of an hour of the last 30 days."""
        return list((await self._get_reply("/resource/stats/user/month")).json())

    async def admin_monthly_stats(self) -> list[dict[str, Any]]:
        """Returns the usage of all users in each quarter of an hour, for administrators."""
        return list((await self._get_reply("/resource/stats/admin/month")).json())
