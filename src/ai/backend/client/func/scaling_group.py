"""Resource groups, called scaling groups on the wire (spec 03-09, client wire contract 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from ai.backend.client.func.base import Mutations
from ai.backend.client.portal import Facade, blocking
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call

RESOURCE_GROUP_FIELDS = (
    "name", "description", "is_active", "is_public", "created_at", "driver", "driver_opts", "scheduler",
    "scheduler_opts", "use_host_network", "wsproxy_addr",
)  # fmt: skip


class AsyncScalingGroup(Mutations):
    """``api_session.ScalingGroup``. All but :meth:`list_available` is for superadmins.

    ``props``: description, is_active, is_public, driver, driver_opts, scheduler (``fifo``, ``lifo``, ``drf``,
    ``fair-share``), scheduler_opts, use_host_network, wsproxy_addr, wsproxy_api_token.
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self._transport = transport

    async def list_available(self, group: str) -> list[dict[str, Any]]:
        """Lists the names of the resource groups that sessions of this group (project) may use."""
        call = Call(method="GET", path="/scaling-groups", params={"group": group}, repeatable=True)
        return list((await self._transport.request(call)).object()["scaling_groups"])

    async def list(self, fields: Sequence[str] = RESOURCE_GROUP_FIELDS) -> list[dict[str, Any]]:
        reply = await self._admin.query(f"{{ scaling_groups {{ {' '.join(fields)} }} }}")
        return list(reply["scaling_groups"])

    async def detail(self, name: str, fields: Sequence[str] = RESOURCE_GROUP_FIELDS) -> dict[str, Any] | None:
        """Returns a resource group, or None."""
        query = f"query($name: String) {{ scaling_group(name: $name) {{ {' '.join(fields)} }} }}"
        resource_group = (await self._admin.query(query, {"name": name}))["scaling_group"]
        return dict(resource_group) if resource_group is not None else None

    async def create(self, name: str, /, **props: Any) -> None:
        props = {"driver": "static", "scheduler": "fifo", **props}
        await self.mutate("create_scaling_group", {"name": ("String!", name)}, "CreateScalingGroupInput", props)

    async def update(self, name: str, /, **props: Any) -> None:
        await self.mutate("modify_scaling_group", {"name": ("String!", name)}, "ModifyScalingGroupInput", props)

    async def delete(self, name: str) -> None:
        await self.mutate("delete_scaling_group", {"name": ("String!", name)})

    async def associate_domain(self, scaling_group: str, domain: str) -> None:
        await self._link("associate_scaling_group_with_domain", scaling_group, domain=("String!", domain))

    async def dissociate_domain(self, scaling_group: str, domain: str) -> None:
        await self._link("disassociate_scaling_group_with_domain", scaling_group, domain=("String!", domain))

    async def dissociate_all_domain(self, domain: str) -> None:
        await self._link("disassociate_all_scaling_groups_with_domain", None, domain=("String!", domain))

    async def associate_group(self, scaling_group: str, group_id: UUID | str) -> None:
        group = ("UUID!", str(group_id))
        await self._link("associate_scaling_group_with_user_group", scaling_group, user_group=group)

    async def dissociate_group(self, scaling_group: str, group_id: UUID | str) -> None:
        group = ("String!", str(group_id))
        await self._link("disassociate_scaling_group_with_user_group", scaling_group, user_group=group)

    async def dissociate_all_group(self, group_id: UUID | str) -> None:
        group = ("UUID!", str(group_id))
        await self._link("disassociate_all_scaling_groups_with_group", None, user_group=group)

    async def associate_keypair(self, scaling_group: str, access_key: str) -> None:
        await self._link("associate_scaling_group_with_keypair", scaling_group, access_key=("String!", access_key))

    async def dissociate_keypair(self, scaling_group: str, access_key: str) -> None:
        await self._link("disassociate_scaling_group_with_keypair", scaling_group, access_key=("String!", access_key))

    async def _link(self, field: str, scaling_group: str | None, **whom: tuple[str, Any]) -> None:
        named = {"scaling_group": ("String!", scaling_group)} if scaling_group is not None else {}
        await self.mutate(field, {**whom, **named})


class ScalingGroup(Facade[AsyncScalingGroup]):
    """``api_session.ScalingGroup`` of a blocking session."""

    list_available = blocking(AsyncScalingGroup.list_available)
    list = blocking(AsyncScalingGroup.list)
    detail = blocking(AsyncScalingGroup.detail)
    create = blocking(AsyncScalingGroup.create)
    update = blocking(AsyncScalingGroup.update)
    delete = blocking(AsyncScalingGroup.delete)
    associate_domain = blocking(AsyncScalingGroup.associate_domain)
    dissociate_domain = blocking(AsyncScalingGroup.dissociate_domain)
    dissociate_all_domain = blocking(AsyncScalingGroup.dissociate_all_domain)
    associate_group = blocking(AsyncScalingGroup.associate_group)
    dissociate_group = blocking(AsyncScalingGroup.dissociate_group)
    dissociate_all_group = blocking(AsyncScalingGroup.dissociate_all_group)
    associate_keypair = blocking(AsyncScalingGroup.associate_keypair)
    dissociate_keypair = blocking(AsyncScalingGroup.dissociate_keypair)
