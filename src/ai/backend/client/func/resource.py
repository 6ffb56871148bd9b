"""Resource slots, registries and usage of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ai.backend.client.func.base import ResourceClient
from ai.backend.client.portal import Facade, blocking
from ai.backend.client.wire import Call, new_token


class AsyncResource(ResourceClient):
    """Resource slots and presets."""

    async def list_slots(self) -> dict[str, str]:
        """Returns every known slot and how its quantity reads: ``count``, ``bytes`` or ``unique``."""
        return await self._get("/config/resource-slots")

    async def slot_details(self) -> dict[str, dict[str, Any]]:
        """Returns every known slot with what its plugin says about showing it: names, unit, number format."""
        return await self._get("/config/resource-slots/details")

    async def variant_properties(self, scaling_group: str | None = None) -> list[dict[str, Any]]:
        """Lists the values for ``variant_requirements``, with the number of such ``devices`` in each resource group."""
        params = {"scaling_group": scaling_group} if scaling_group else {}
        return list((await self._get("/resource/variant-properties", **params)).get("variant_properties", ()))

    async def list_presets(self) -> dict[str, Any]:
        return await self._get("/resource/presets")

    async def check_presets(self, *, group: str | None = None, scaling_group: str | None = None) -> dict[str, Any]:
        body = {"group": group or self._transport.config.group, "scaling_group": scaling_group}
        call = Call(method="POST", path="/resource/check-presets", json=body, repeatable=True, token=new_token())
        return (await self._transport.request(call)).object()

    async def get_docker_registries(self) -> dict[str, Any]:
        """Registries of images by their names."""
        return await self._get("/config/docker-registries")

    async def get_vfolder_types(self) -> list[str]:
        """Lists the kinds of owners of virtual folders: ``user``, ``group``."""
        return list(await self._read("/config/vfolder-types"))

    async def recalculate_usage(self) -> dict[str, Any]:
        """Recount what kernels hold; ``drift`` names agents whose records differ, and should be empty."""
        return await self._send("POST", "/resource/recalculate-usage", {}, repeatable=True)

    async def usage_per_month(self, month: str, group_ids: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Returns the usage of each group in a month (``YYYYMM``, UTC); of all visible groups without ids."""
        return list(await self._read("/resource/usage/month", {"month": month, "group_ids": list(group_ids)}))

    async def usage_per_period(self, group_id: str, start_date: str, end_date: str) -> dict[str, Any]:
        """Returns the usage of a group between two days (``YYYYMMDD``, UTC), both included; empty for none."""
        body = {"group_id": group_id, "start_date": start_date, "end_date": end_date}
        return dict(await self._read("/resource/usage/period", body))

    async def user_monthly_stats(self) -> list[dict[str, Any]]:
        """Returns the caller's usage in each quarter of an hour of the last 30 days."""
        return list(await self._read("/resource/stats/user/month"))

    async def admin_monthly_stats(self) -> list[dict[str, Any]]:
        """Returns the usage of all users in each quarter of an hour, for administrators."""
        return list(await self._read("/resource/stats/admin/month"))


class Resource(Facade[AsyncResource]):
    """``api_session.Resource`` of a blocking session."""

    list_slots = blocking(AsyncResource.list_slots)
    slot_details = blocking(AsyncResource.slot_details)
    variant_properties = blocking(AsyncResource.variant_properties)
    list_presets = blocking(AsyncResource.list_presets)
    check_presets = blocking(AsyncResource.check_presets)
    get_docker_registries = blocking(AsyncResource.get_docker_registries)
    get_vfolder_types = blocking(AsyncResource.get_vfolder_types)
    recalculate_usage = blocking(AsyncResource.recalculate_usage)
    usage_per_month = blocking(AsyncResource.usage_per_month)
    usage_per_period = blocking(AsyncResource.usage_per_period)
    user_monthly_stats = blocking(AsyncResource.user_monthly_stats)
    admin_monthly_stats = blocking(AsyncResource.admin_monthly_stats)
