"""Resource groups, called scaling groups on the wire (spec 03-09, client wire contract 3)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ai.backend.client.func.base import NamedObjects


class AsyncScalingGroup(NamedObjects):
    """Lists and manages resource groups (``api_session.ScalingGroup``). All but :meth:`list_available` is for
    superadmins.

    ``props``: description, is_active, is_public, driver, driver_opts, scheduler (``fifo``, ``lifo``, ``drf``,
    ``fair-share``), scheduler_opts, use_host_network, wsproxy_addr, wsproxy_api_token.
    """

    noun = "scaling_group"
    plural = "scaling_groups"
    inputs = ("CreateScalingGroupInput", "ModifyScalingGroupInput")
    fields = (
        "name", "description", "is_active", "is_public", "created_at", "driver", "driver_opts", "scheduler",
        "scheduler_opts", "use_host_network", "wsproxy_addr",
    )  # fmt: skip

    async def list_available(self, group: str) -> list[dict[str, Any]]:
        """Lists the names of the resource groups that sessions of this group (project) may use."""
        return (await self._get("/scaling-groups", group=group))["scaling_groups"]  # type: ignore[no-any-return]

    async def create(self, name: str, /, **props: Any) -> None:
        await super().create(name, **{"driver": "static", "scheduler": "fifo", "is_public": True, **props})

    async def associate_domain(self, scaling_group: str, domain: str) -> None:
        await self._change_link("associate_scaling_group_with_domain", scaling_group, domain=("String!", domain))

    async def dissociate_domain(self, scaling_group: str, domain: str) -> None:
        await self._change_link("disassociate_scaling_group_with_domain", scaling_group, domain=("String!", domain))

    async def dissociate_all_domain(self, domain: str) -> None:
        await self._change_link("disassociate_all_scaling_groups_with_domain", None, domain=("String!", domain))

    async def associate_group(self, scaling_group: str, group_id: UUID | str) -> None:
        group_argument = ("UUID!", str(group_id))
        await self._change_link("associate_scaling_group_with_user_group", scaling_group, user_group=group_argument)

    async def dissociate_group(self, scaling_group: str, group_id: UUID | str) -> None:
        group_argument = ("String!", str(group_id))
        await self._change_link("disassociate_scaling_group_with_user_group", scaling_group, user_group=group_argument)

    async def dissociate_all_group(self, group_id: UUID | str) -> None:
        group_argument = ("UUID!", str(group_id))
        await self._change_link("disassociate_all_scaling_groups_with_group", None, user_group=group_argument)

    async def associate_keypair(self, scaling_group: str, access_key: str) -> None:
        await self._change_link(
            "associate_scaling_group_with_keypair", scaling_group, access_key=("String!", access_key)
        )

    async def dissociate_keypair(self, scaling_group: str, access_key: str) -> None:
        await self._change_link(
            "disassociate_scaling_group_with_keypair", scaling_group, access_key=("String!", access_key)
        )

    async def _change_link(self, root: str, scaling_group: str | None, **target: tuple[str, Any]) -> None:
        await self._admin.mutate(root, {**target, "scaling_group": ("String!", scaling_group)})
