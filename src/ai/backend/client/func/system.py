"""Versions, credentials, agents, resources: what one may ask about the cluster and oneself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack
from urllib.parse import quote

from ai.backend.client.exceptions import UnusableReply
from ai.backend.client.func.admin import AsyncAdmin, PaginatedResult, Paging
from ai.backend.client.func.area import Area
from ai.backend.client.func.bounds import Mutations
from ai.backend.client.func.people import AsyncKeyPair
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
    "overlay",
    "location",
    "max_kernels",
    "compute_plugins",
    "devices",
)


class AsyncSystem(Area):
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


class AsyncAuth(Area):
    """Credentials."""

    async def authorize(self, user_id: str, password: str) -> dict[str, Any]:
        """The keypair of a user, by e-mail address and password: ``access_key``, ``secret_key``, ``role``."""
        body = {"type": "keypair", "domain": self._transport.config.domain, "username": user_id, "password": password}
        call = Call(method="POST", path="/auth/authorize", json=body, signed=False)
        return dict((await self._transport.request(call)).object().get("data", {}))

    async def update_password(self, old_password: str, new_password: str, new_password2: str) -> None:
        """Change the caller's password."""
        body = {"old_password": old_password, "new_password": new_password, "new_password2": new_password2}
        await self._send("POST", "/auth/update-password", body)

    async def update_password_no_auth(self, domain: str, user_id: str, current: str, new: str) -> None:
        """Change a password that must be changed before its user signs in; without a signature."""
        body = {"domain": domain, "username": user_id, "current_password": current, "new_password": new}
        call = Call(method="POST", path="/auth/update-password-no-auth", json=body, signed=False)
        await self._transport.request(call)

    async def ssh_public_key(self) -> str:
        """The key that opens the sessions of the caller's keypair; empty for none."""
        return str((await self._get("/auth/ssh-keypair")).get("ssh_public_key") or "")

    async def generate_ssh_keypair(self) -> dict[str, str]:
        """A new key in its place: ``ssh_public_key`` and, this once, ``ssh_private_key``."""
        return await self._send("PATCH", "/auth/ssh-keypair", {})

    async def upload_ssh_keypair(self, public_key: str, private_key: str = "") -> str:
        """Let a key of one's own open sessions; the private half is only compared. The public key as it is kept."""
        body = {"pubkey": public_key, "privkey": private_key}
        return str((await self._send("POST", "/auth/ssh-keypair", body))["ssh_public_key"])

    async def check(self) -> dict[str, Any]:
        """Whether the configured keypair is accepted: the caller's own keypair."""
        return await AsyncKeyPair(self._transport).info()


class AsyncManager(Area):
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

    async def update_announcement(self, enabled: bool = True, message: str | None = None) -> None:
        """Tell everybody something in Markdown, or nothing any more. For superadmins, as all changes here."""
        await self._send("POST", "/manager/announcement", {"enabled": enabled, "message": message}, repeatable=True)

    async def scheduler_op(self, op: Literal["include-agents", "exclude-agents"], args: Sequence[str]) -> None:
        """Let agents take new sessions, or none."""
        await self._send("POST", "/manager/scheduler/operation", {"op": op, "args": list(args)}, repeatable=True)

    async def _set(self, body: dict[str, Any]) -> None:
        await self._send("PUT", "/manager/status", body, repeatable=True)


class AsyncServerLog(Area):
    """Errors that clients reported."""

    async def list(self, mark_read: bool = False, page_size: int = 20, page_no: int = 1) -> dict[str, Any]:
        """``logs``, newest first, and their ``count``; administrators see those of their domain."""
        params = {"mark_read": str(mark_read), "page_size": str(page_size), "page_no": str(page_no)}
        return await self._get("/logs/error", **params)


class AsyncEtcdConfig(Area):
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
        return await self._send("POST", f"/config/{verb}", body, repeatable=True)


class AsyncAgent(Area):
    """The agents, for administrators."""

    async def paginated_list(
        self,
        status: str | None = "ALIVE",
        scaling_group: str | None = None,
        *,
        fields: Sequence[str] = AGENT_FIELDS,
        **paging: Unpack[Paging],
    ) -> PaginatedResult:
        arguments = {
            "status": ("String", status),
            "scaling_group": ("String", scaling_group),
        }
        admin = AsyncAdmin(self._transport)
        return await admin.fetch_page("agent_list", fields, arguments, **paging)

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


class AsyncAgentWatcher(Area):
    """Whoever starts and stops an agent, for superadmins."""

    async def get_status(self, agent_id: str) -> dict[str, Any]:
        """``agent-status``, as systemd says it."""
        return await self._get("/resource/watcher", agent_id=agent_id)

    async def agent_start(self, agent_id: str) -> dict[str, Any]:
        return await self._act("start", agent_id)

    async def agent_stop(self, agent_id: str) -> dict[str, Any]:
        """Its sessions go on."""
        return await self._act("stop", agent_id)

    async def agent_restart(self, agent_id: str) -> dict[str, Any]:
        return await self._act("restart", agent_id)

    async def _act(self, action: str, agent_id: str) -> dict[str, Any]:
        return await self._send("POST", f"/resource/watcher/agent/{action}", {"agent_id": agent_id})


def _operations(agent_id: str, device_name: str) -> str:
    return f"/resource/agents/{quote(agent_id, safe='')}/devices/{quote(device_name, safe='')}/operations"


class AsyncResource(Area):
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

    async def get_docker_registries(self) -> dict[str, Any]:
        """Registries of images by their names."""
        return await self._get("/config/docker-registries")

    async def get_vfolder_types(self) -> list[str]:
        """Who may own virtual folders: ``user``, ``group``."""
        return list(await self._read("/config/vfolder-types"))

    async def recalculate_usage(self) -> dict[str, Any]:
        """Count again what kernels hold; ``drift`` names agents whose records differ, and should be empty."""
        return await self._send("POST", "/resource/recalculate-usage", {}, repeatable=True)

    async def usage_per_month(self, month: str, group_ids: Sequence[str] = ()) -> list[dict[str, Any]]:
        """What each group used in a month (``YYYYMM``, UTC); all that the caller sees without ids."""
        return list(await self._read("/resource/usage/month", {"month": month, "group_ids": list(group_ids)}))

    async def usage_per_period(self, group_id: str, start_date: str, end_date: str) -> dict[str, Any]:
        """What a group used from one day (``YYYYMMDD``, UTC) to another, both included; empty for nothing."""
        body = {"group_id": group_id, "start_date": start_date, "end_date": end_date}
        return dict(await self._read("/resource/usage/period", body))

    async def user_monthly_stats(self) -> list[dict[str, Any]]:
        """What of the caller's was running in each quarter of an hour of the last 30 days."""
        return list(await self._read("/resource/stats/user/month"))

    async def admin_monthly_stats(self) -> list[dict[str, Any]]:
        """The same of everybody's, for administrators."""
        return list(await self._read("/resource/stats/admin/month"))
