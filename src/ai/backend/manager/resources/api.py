"""What the cluster offers: slots, presets, resource groups, its state (spec 03-08, client wire contract 2.9)."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from ai.backend.common.slots import ResourceSlot
from ai.backend.common.wire.agent import OperateDevice
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.fields import Name
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.agents.api import DeviceOperationBody, SchedulerBody
from ai.backend.manager.identity.api import RoleQuery
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.resource_groups.api import GroupsQuery
from ai.backend.manager.resource_groups.service import ResourceGroupService
from ai.backend.manager.resources.model import ResourcePreset
from ai.backend.manager.resources.service import ClusterService
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.system.api import AnnouncementBody, StatusBody, StatusQuery
from ai.backend.manager.system.service import Announcement, ManagerState

PRESETS_TTL_S = 0.2
"""How long the encoded presets are served again; they change when an administrator or a new agent changes them."""


class SlotsQuery(Schema, frozen=True):
    sgroup: Name | None = None


class VariantsQuery(Schema, frozen=True):
    scaling_group: Name | None = None


class CheckPresetsBody(Schema, frozen=True):
    group: Name | None = None
    scaling_group: Name | None = None


class ClusterApi:
    """Reads that every user may make."""

    def __init__(
        self,
        cluster: ClusterService,
        identity: IdentityService,
        resource_groups: ResourceGroupService,
        sessions: SessionService,
        state: ManagerState,
        *,
        announcement: str = "",
        has_folders: bool = False,
    ) -> None:
        self._cluster = cluster
        self._identity = identity
        self._resource_groups = resource_groups
        self._sessions = sessions
        self._state = state
        self._announcement = announcement
        self._has_folders = has_folders
        self._presets: tuple[float, msgspec.Raw] = (0.0, msgspec.Raw(b""))

    @route("GET", "/config/resource-slots")
    async def resource_slots(self, call: Call) -> dict[str, str]:
        """Slot name to its type, of every slot that an agent ever reported."""
        return {info.slot_name: info.slot_type.value for info in self._cluster.slot_types()}

    @route("GET", "/config/resource-slots/details", query=SlotsQuery)
    async def resource_slot_details(self, call: Call[Nothing, SlotsQuery]) -> dict[str, Any]:
        """Slot name to what user interfaces show of it; with ``sgroup`` only what that resource group has now."""
        group, slots = call.query.sgroup, self._cluster.slot_types()
        if group is not None:
            offered = await self._cluster.offered_slots(caller_of(call), group)
            slots = [info for info in slots if info.slot_name in offered]
        return {info.slot_name: dict(info.metadata) for info in slots}

    @route("GET", "/config/vfolder-types")
    async def vfolder_types(self, call: Call) -> list[str]:
        """Who may own virtual folders here; nobody where no folders are kept."""
        return ["user", "group"] if self._has_folders else []

    @route("GET", "/resource/variant-properties", query=VariantsQuery)
    async def variant_properties(self, call: Call[Nothing, VariantsQuery]) -> dict[str, Any]:
        """What a session may require of its devices here (``config.variant_requirements``), and how many there are."""
        found = await self._cluster.variants(caller_of(call), call.query.scaling_group)
        return {"variant_properties": [variant.to_json() for variant in found]}

    @route("GET", "/resource/agents/{agent_id}/devices/{device_name}/operations")
    async def device_operations(self, call: Call) -> dict[str, Any]:
        """What a superadmin can do with the devices of an agent's plugin."""
        found = await self._cluster.device_options(caller_of(call), call.params["agent_id"], call.params["device_name"])
        told: dict[str, Any] = msgspec.to_builtins(found)
        return told

    @route("POST", "/resource/agents/{agent_id}/devices/{device_name}/operations", body=DeviceOperationBody)
    async def operate_device(self, call: Call[DeviceOperationBody]) -> dict[str, Any]:
        """Do something to a device that is not in use; answered when it is done.

        ``action`` is partition, unpartition, power-on, power-off, reset, program, attach or detach; the answer has the
        id of the device, or of the new partition.
        """
        operation = OperateDevice(device_name=call.params["device_name"], **msgspec.structs.asdict(call.body))
        done = await self._cluster.operate_device(caller_of(call), call.params["agent_id"], operation)
        return {"device_id": done.device_id}

    @route("GET", "/resource/presets")
    async def presets(self, call: Call) -> msgspec.Raw:
        """Combinations of resources that an administrator has named."""
        now = time.monotonic()
        until, told = self._presets
        if now >= until:
            known = {info.slot_name for info in self._cluster.slot_types()}
            presets = [_preset(preset, known) for preset in await self._cluster.presets()]
            told = msgspec.Raw(msgspec.json.encode({"presets": presets}))
            self._presets = (now + PRESETS_TTL_S, told)
        return told

    @route("POST", "/resource/recalculate-usage", repeatable=True)
    async def recount(self, call: Call) -> dict[str, Any]:
        """Count again what kernels hold: ``drift`` names agents whose record differs, and should be empty."""
        found = await self._cluster.recount(caller_of(call))
        drift = {
            agent: {"recorded": recorded.to_json(), "counted": counted.to_json()}
            for agent, (recorded, counted) in found.drift.items()
        }
        return {"drift": drift, "orphans": [str(kernel) for kernel in found.orphans]}

    @route("POST", "/resource/check-presets", body=CheckPresetsBody, audited=False)
    async def check_presets(self, call: Call[CheckPresetsBody]) -> dict[str, Any]:
        """The presets with whether each could be had now, and what is left to the caller."""
        body = call.body
        check = await self._cluster.check_presets(caller_of(call), group=body.group, scaling_group=body.scaling_group)
        known = {info.slot_name for info in self._cluster.slot_types()}
        remaining = ResourceSlot()
        for _, left in check.scaling_groups.values():
            remaining += left
        return {
            "keypair_limits": check.keypair_limits.to_json(),
            "keypair_using": check.keypair_using.to_json(),
            "keypair_remaining": check.keypair_remaining.to_json(),
            "group_limits": check.group_limits.to_json(),
            "group_using": check.group_using.to_json(),
            "group_remaining": check.group_remaining.to_json(),
            "domain_limits": check.domain_limits.to_json(),
            "domain_using": check.domain_using.to_json(),
            "domain_remaining": check.domain_remaining.to_json(),
            "scaling_group_remaining": remaining.to_json(),
            "scaling_groups": {
                name: {"using": using.to_json(), "remaining": left.to_json()}
                for name, (using, left) in check.scaling_groups.items()
            },
            "presets": [
                {**_preset(preset, known), "allocatable": allocatable} for preset, allocatable in check.presets
            ],
        }

    @route("GET", "/scaling-groups", query=GroupsQuery)
    async def scaling_groups(self, call: Call[Nothing, GroupsQuery]) -> dict[str, Any]:
        """Resource groups that the caller may use."""
        groups = await self._resource_groups.available(caller_of(call), group=call.query.group)
        return {"scaling_groups": [{"name": group.name} for group in groups]}

    @route("GET", "/auth/role", query=RoleQuery)
    async def role(self, call: Call[Nothing, RoleQuery]) -> dict[str, Any]:
        """What the caller is: over all, in the domain, in a group."""
        caller = caller_of(call)
        admin = "admin" if caller.is_any_admin else "user"
        told: dict[str, Any] = {
            "global_role": caller.role.value,
            "domain_role": admin,
            "group_role": None,
        }
        if call.query.group is not None and await self._identity.groups(caller, name=call.query.group):
            told["group_role"] = admin
        return told

    @route("GET", "/manager/status", query=StatusQuery)
    async def status(self, call: Call[Nothing, StatusQuery]) -> dict[str, Any]:
        """Whether new sessions are taken, and how many there are."""
        active, status = await self._sessions.count_active(), await self._state.status()
        return {"status": status, "active_sessions": active, "nodes": []}

    @route("PUT", "/manager/status", body=StatusBody)
    async def set_status(self, call: Call[StatusBody]) -> None:
        """Freeze or unfreeze: a frozen installation takes no new sessions. ``force_kill`` also ends those there are."""
        caller, body = caller_of(call), call.body
        await self._state.set_status(caller, body.status)
        if body.force_kill and body.status == "frozen":
            await self._sessions.destroy_all(caller)

    @route("POST", "/manager/scheduler/operation", body=SchedulerBody)
    async def operate_scheduler(self, call: Call[SchedulerBody]) -> None:
        """Let agents take new sessions, or none."""
        is_included = call.body.op == "include-agents"
        await self._cluster.set_schedulable(caller_of(call), call.body.args, is_included)

    @route("GET", "/manager/announcement")
    async def announcement(self, call: Call) -> dict[str, Any]:
        """What administrators want everybody to read."""
        told = await self._state.announcement(self._announcement)
        return {"enabled": told.enabled, "message": told.message}

    @route("POST", "/manager/announcement", body=AnnouncementBody)
    async def set_announcement(self, call: Call[AnnouncementBody]) -> None:
        """Tell everybody something, or nothing any more."""
        message = call.body.message or ""
        if call.body.enabled and not message.strip():
            raise refuse({"message": "required"})
        await self._state.announce(caller_of(call), Announcement(call.body.enabled, message))


def _preset(preset: ResourcePreset, known: set[Any]) -> dict[str, Any]:
    """Slots that nobody offers are left out (spec 03-07, "Resource Preset Object")."""
    slots = {name: text for name, text in preset.resource_slots.to_json().items() if name in known}
    return {"name": preset.name, "resource_slots": slots, "shared_memory": preset.shared_memory}
