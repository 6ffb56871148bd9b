"""Versions, keypairs, agents, resources: what one may ask about the cluster and oneself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from ai.backend.client.exceptions import UnusableReply
from ai.backend.client.func.admin import AsyncAdmin, PaginatedResult
from ai.backend.client.func.bounds import Mutations
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call, new_token

AGENT_FIELDS = (
    "id",
    "status",
    "status_changed",
    "region",
    "architecture",
    "scaling_group",
    "schedulable",
    "available_slots",
    "occupied_slots",
    "addr",
    "first_contact",
    "version",
    "runtime",
    "tier",
    "enforcement",
    "location",
    "max_kernels",
    "compute_plugins",
    "devices",
)
KEYPAIR_FIELDS = (
    "user_id",
    "access_key",
    "is_active",
    "is_admin",
    "created_at",
    "last_used",
    "resource_policy",
    "rate_limit",
    "concurrency_used",
)


class _Area:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def _get(self, path: str, **params: str) -> dict[str, Any]:
        call = Call(method="GET", path=path, params=params or None, repeatable=True)
        return (await self._transport.request(call)).object()


class AsyncSystem(_Area):
    """The server as a whole."""

    async def get_versions(self) -> dict[str, str]:
        """``version`` of the API and ``manager`` of the server; needs no credentials."""
        call = Call(method="GET", path="/", signed=False, repeatable=True)
        return (await self._transport.request(call)).object()

    async def get_api_version(self) -> str:
        versions = await self.get_versions()
        if "version" not in versions:
            raise UnusableReply("this endpoint does not tell its version: is it a manager?")
        return versions["version"]

    async def get_manager_version(self) -> str:
        return str((await self.get_versions()).get("manager", ""))


class AsyncAuth(_Area):
    """Credentials."""

    async def authorize(self, user_id: str, password: str) -> dict[str, Any]:
        """The keypair of a user, by e-mail address and password: ``access_key``, ``secret_key``, ``role``."""
        body = {"type": "keypair", "domain": self._transport.config.domain, "username": user_id, "password": password}
        call = Call(method="POST", path="/auth/authorize", json=body, signed=False)
        return dict((await self._transport.request(call)).object().get("data", {}))

    async def check(self) -> dict[str, Any]:
        """Whether the configured keypair is accepted: the caller's own keypair."""
        return await AsyncKeyPair(self._transport).info()


class AsyncManager(_Area):
    """The manager daemon."""

    async def status(self) -> dict[str, Any]:
        """``status`` (running or frozen) and ``active_sessions``."""
        return await self._get("/manager/status")

    async def freeze(self, *, force_kill: bool = False) -> None:
        await self._set({"status": "frozen", "force_kill": force_kill})

    async def unfreeze(self) -> None:
        await self._set({"status": "running"})

    async def get_announcement(self) -> dict[str, Any]:
        return await self._get("/manager/announcement")

    async def _set(self, body: dict[str, Any]) -> None:
        await self._transport.request(Call(method="PUT", path="/manager/status", json=body, repeatable=True))


class AsyncEtcdConfig(_Area):
    """The shared configuration, for superadmins; in the embedded cluster no etcd is behind it."""

    async def get(self, key: str, *, prefix: bool = False) -> Any:
        """A value, None if there is none, or with ``prefix`` nested objects of all that is below the key."""
        return (await self._ask("get", {"key": key, "prefix": prefix})).get("result")

    async def set(self, key: str, value: Any) -> None:
        """Set a key; an object sets every key in it."""
        await self._ask("set", {"key": key, "value": value})

    async def delete(self, key: str, *, prefix: bool = False) -> None:
        await self._ask("delete", {"key": key, "prefix": prefix})

    async def _ask(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        call = Call(method="POST", path=f"/config/{verb}", json=body, repeatable=True)
        return (await self._transport.request(call)).object()


class AsyncAgent(_Area):
    """The agents, for administrators."""

    async def paginated_list(
        self,
        status: str | None = "ALIVE",
        scaling_group: str | None = None,
        *,
        fields: Sequence[str] = AGENT_FIELDS,
        page_offset: int = 0,
        page_size: int = 20,
        filter: str | None = None,  # noqa: A002  # the name of the argument on the wire
        order: str | None = None,
    ) -> PaginatedResult:
        arguments = {
            "status": ("String", status),
            "scaling_group": ("String", scaling_group),
            "filter": ("String", filter),
            "order": ("String", order),
        }
        admin = AsyncAdmin(self._transport)
        return await admin.fetch_page("agent_list", fields, arguments, page_offset=page_offset, page_size=page_size)

    async def detail(self, agent_id: str, *, fields: Sequence[str] = AGENT_FIELDS) -> dict[str, Any] | None:
        """One agent, or None."""
        query = f"query($agent_id: String!) {{ agent(agent_id: $agent_id) {{ {' '.join(fields)} }} }}"
        found = (await AsyncAdmin(self._transport).query(query, {"agent_id": agent_id})).get("agent")
        return dict(found) if found else None

    async def update(self, agent_id: str, /, **props: Any) -> None:
        """``schedulable``: whether it takes sessions; ``scaling_group``: its resource group. For superadmins."""
        await Mutations(self._transport).mutate(
            "modify_agent", {"id": ("String!", agent_id)}, "ModifyAgentInput", props
        )

    async def device_options(self, agent_id: str, device_name: str) -> dict[str, Any]:
        """What a superadmin can do with the devices of a plugin: ``actions``, ``profiles``, ``images``, ..."""
        return await self._get(_operations(agent_id, device_name))

    async def operate_device(
        self, agent_id: str, device_name: str, action: str, device_id: str, argument: str = ""
    ) -> str:
        """Do one of these actions to a device that nobody uses; the id of the device, or of what was made of it."""
        body = {"action": action, "device_id": device_id, "argument": argument}
        call = Call(method="POST", path=_operations(agent_id, device_name), json=body)
        return str((await self._transport.request(call)).object()["device_id"])


def _operations(agent_id: str, device_name: str) -> str:
    return f"/resource/agents/{quote(agent_id, safe='')}/devices/{quote(device_name, safe='')}/operations"


class AsyncKeyPair(_Area):
    """Keypairs. ``props``: is_active, is_admin, resource_policy, rate_limit (requests in 15 minutes; 0: any number)."""

    async def create(self, user_id: str, /, **props: Any) -> dict[str, Any]:
        """A further keypair of the user of an e-mail address: ``access_key`` and, this once, ``secret_key``."""
        answer = await Mutations(self._transport).mutate(
            "create_keypair",
            {"user_id": ("String!", user_id)},
            "KeyPairInput",
            props,
            result="keypair { access_key secret_key }",
        )
        return dict(answer["keypair"])

    async def update(self, access_key: str, /, **props: Any) -> None:
        named = {"access_key": ("String!", access_key)}
        await Mutations(self._transport).mutate("modify_keypair", named, "ModifyKeyPairInput", props)

    async def activate(self, access_key: str) -> None:
        await self.update(access_key, is_active=True)

    async def deactivate(self, access_key: str) -> None:
        await self.update(access_key, is_active=False)

    async def delete(self, access_key: str) -> None:
        """For good; not the main keypair of its user."""
        await Mutations(self._transport).mutate("delete_keypair", {"access_key": ("String!", access_key)})

    async def info(self, *, fields: Sequence[str] = KEYPAIR_FIELDS) -> dict[str, Any]:
        """The caller's own keypair."""
        found = (await AsyncAdmin(self._transport).query(f"query {{ keypair {{ {' '.join(fields)} }} }}")).get(
            "keypair"
        )
        return dict(found or {})

    async def paginated_list(
        self,
        *,
        is_active: bool | None = None,
        user_id: str | None = None,
        domain_name: str | None = None,
        fields: Sequence[str] = KEYPAIR_FIELDS,
        page_offset: int = 0,
        page_size: int = 20,
        filter: str | None = None,  # noqa: A002  # the name of the argument on the wire
        order: str | None = None,
    ) -> PaginatedResult:
        arguments = {
            "is_active": ("Boolean", is_active),
            "email": ("String", user_id),
            "domain_name": ("String", domain_name),
            "filter": ("String", filter),
            "order": ("String", order),
        }
        admin = AsyncAdmin(self._transport)
        return await admin.fetch_page("keypair_list", fields, arguments, page_offset=page_offset, page_size=page_size)


class AsyncResource(_Area):
    """Resource slots and presets."""

    async def list_slots(self) -> dict[str, str]:
        """Every known slot and how its quantity reads: ``count``, ``bytes`` or ``unique``."""
        return await self._get("/config/resource-slots")

    async def slot_details(self) -> dict[str, dict[str, Any]]:
        """Every known slot with what its plugin says about showing it: names, unit, number format."""
        return await self._get("/config/resource-slots/details")

    async def variant_properties(self, scaling_group: str | None = None) -> list[dict[str, Any]]:
        """What ``variant_requirements`` may ask for, with how many ``devices`` of each resource group are so."""
        params = {"scaling_group": scaling_group} if scaling_group else {}
        return list((await self._get("/resource/variant-properties", **params)).get("variant_properties", ()))

    async def list_presets(self) -> dict[str, Any]:
        return await self._get("/resource/presets")

    async def check_presets(self, *, group: str | None = None, scaling_group: str | None = None) -> dict[str, Any]:
        body = {"group": group or self._transport.config.group, "scaling_group": scaling_group}
        call = Call(method="POST", path="/resource/check-presets", json=body, repeatable=True, token=new_token())
        return (await self._transport.request(call)).object()
