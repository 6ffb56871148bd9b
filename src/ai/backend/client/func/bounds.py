"""Domains, groups and policies as superadmins change them over GraphQL (client wire contract 3.2).

``props`` are the fields of the mutation's input; those that are left out stay as they are. ``allowed_vfolder_hosts``
maps a storage host to the names of what may be done there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from ai.backend.client.exceptions import BackendAPIError
from ai.backend.client.func.admin import AsyncAdmin
from ai.backend.client.transport import Transport

_STRUCTURED = frozenset(
    {
        "allowed_vfolder_hosts",
        "total_resource_slots",
        "max_pending_session_resource_slots",
        "resource_slots",
        "driver_opts",
        "scheduler_opts",
    }
)


class Mutations:
    """An area of the API that changes objects over GraphQL."""

    def __init__(self, transport: Transport) -> None:
        self._admin = AsyncAdmin(transport)

    async def mutate(
        self,
        field: str,
        arguments: Mapping[str, tuple[str, Any]],
        kind: str | None = None,
        props: Mapping[str, Any] | None = None,
        *,
        result: str = "",
    ) -> dict[str, Any]:
        """The whole answer.

        Args:
            field: of the root type.
            arguments: name -> its type, and what it is.
            kind: the type of ``props``; None where the mutation takes none.
            props: fields of the input; those that are structured become JSON in a string.
            result: what to select besides ``ok`` and ``msg``.

        Raises:
            BackendAPIError: with the server's sentence where it answers ``ok: false``.
        """
        given = dict(arguments)
        if kind is not None:
            told = {
                k: json.dumps(v) if k in _STRUCTURED and v is not None and not isinstance(v, str) else v
                for k, v in (props or {}).items()
            }
            given["props"] = (f"{kind}!", told)
        types = ", ".join(f"${name}: {type_}" for name, (type_, _) in given.items())
        passed = ", ".join(f"{name}: ${name}" for name in given)
        query = f"mutation({types}) {{ {field}({passed}) {{ ok msg {result} }} }}"
        answer = dict((await self._admin.query(query, {name: value for name, (_, value) in given.items()}))[field])
        if not answer["ok"]:
            problem = {"type": "https://api.backend.ai/probs/refused", "title": answer["msg"], "msg": answer["msg"]}
            raise BackendAPIError(400, "Refused", problem)
        return answer


_BOUNDS = "is_active created_at total_resource_slots allowed_vfolder_hosts integration_id"
DOMAIN_FIELDS = ("name", "description", *_BOUNDS.split())
GROUP_FIELDS = ("id", "name", "description", "domain_name", "type", *_BOUNDS.split())
POLICY_FIELDS = (
    "name",
    "created_at",
    "default_for_unspecified",
    "total_resource_slots",
    "max_session_lifetime",
    "max_concurrent_sessions",
    "max_containers_per_session",
    "max_pending_session_count",
    "max_pending_session_resource_slots",
    "idle_timeout",
    "allowed_vfolder_hosts",
)


class AsyncDomain(Mutations):
    """``api_session.Domain``."""

    async def list(self, fields: Sequence[str] = DOMAIN_FIELDS) -> list[dict[str, Any]]:
        return list((await self._admin.query(f"{{ domains {{ {' '.join(fields)} }} }}"))["domains"])

    async def detail(self, name: str | None = None, fields: Sequence[str] = DOMAIN_FIELDS) -> dict[str, Any]:
        """The caller's own without a name."""
        query = f"query($name: String) {{ domain(name: $name) {{ {' '.join(fields)} }} }}"
        return dict((await self._admin.query(query, {"name": name}))["domain"])

    async def delete(self, name: str) -> None:
        """Make it inactive."""
        await self.mutate("delete_domain", {"name": ("String!", name)})

    async def purge(self, name: str) -> None:
        """For good; it must have neither users nor groups."""
        await self.mutate("purge_domain", {"name": ("String!", name)})

    async def create(self, name: str, /, **props: Any) -> None:
        await self.mutate("create_domain", {"name": ("String!", name)}, "DomainInput", props)

    async def update(self, name: str, /, **props: Any) -> None:
        await self.mutate("modify_domain", {"name": ("String!", name)}, "ModifyDomainInput", props)


class AsyncGroup(Mutations):
    """``api_session.Group``."""

    async def list(self, domain_name: str | None = None, fields: Sequence[str] = GROUP_FIELDS) -> list[dict[str, Any]]:
        query = f"query($domain: String) {{ groups(domain_name: $domain) {{ {' '.join(fields)} }} }}"
        return list((await self._admin.query(query, {"domain": domain_name}))["groups"])

    async def detail(self, gid: UUID | str, fields: Sequence[str] = GROUP_FIELDS) -> dict[str, Any] | None:
        """None where there is none of that id for the caller."""
        query = f"query($gid: UUID!) {{ group(id: $gid) {{ {' '.join(fields)} }} }}"
        found = (await self._admin.query(query, {"gid": str(gid)}))["group"]
        return dict(found) if found is not None else None

    async def from_name(
        self, name: str, *, domain_name: str | None = None, fields: Sequence[str] = GROUP_FIELDS
    ) -> Sequence[dict[str, Any]]:
        """Those of that name, in one domain or in all that the caller sees."""
        types, arguments = "$name: String!, $domain: String", "name: $name, domain_name: $domain"
        query = f"query({types}) {{ groups_by_name({arguments}) {{ {' '.join(fields)} }} }}"
        found = (await self._admin.query(query, {"name": name, "domain": domain_name}))["groups_by_name"]
        return tuple(found)

    async def delete(self, gid: UUID | str) -> None:
        """Make it inactive."""
        await self.mutate("delete_group", {"gid": ("UUID!", str(gid))})

    async def purge(self, gid: UUID | str) -> None:
        """For good, with its folders; no session of it may live."""
        await self.mutate("purge_group", {"gid": ("UUID!", str(gid))})

    async def add_users(self, gid: UUID | str, user_uuids: Iterable[UUID | str]) -> None:
        await self.update(gid, user_update_mode="add", user_uuids=[str(user) for user in user_uuids])

    async def remove_users(self, gid: UUID | str, user_uuids: Iterable[UUID | str]) -> None:
        await self.update(gid, user_update_mode="remove", user_uuids=[str(user) for user in user_uuids])

    async def create(self, domain_name: str, name: str, /, **props: Any) -> dict[str, Any]:
        """Its ``id`` and ``name``. ``type`` may be ``MODEL_STORE``."""
        props = {"domain_name": domain_name, **props}
        named, wanted = {"name": ("String!", name)}, "group { id name domain_name }"
        return dict((await self.mutate("create_group", named, "GroupInput", props, result=wanted))["group"])

    async def update(self, gid: UUID | str, /, **props: Any) -> None:
        """``user_update_mode`` (``add`` or ``remove``) goes with ``user_uuids``."""
        await self.mutate("modify_group", {"gid": ("UUID!", str(gid))}, "ModifyGroupInput", props)


class AsyncKeypairResourcePolicy(Mutations):
    """``api_session.KeypairResourcePolicy``."""

    async def list(self, fields: Sequence[str] = POLICY_FIELDS) -> list[dict[str, Any]]:
        root = "keypair_resource_policies"
        return list((await self._admin.query(f"{{ {root} {{ {' '.join(fields)} }} }}"))[root])

    async def detail(self, name: str | None = None, fields: Sequence[str] = POLICY_FIELDS) -> dict[str, Any]:
        """The caller's own without a name."""
        root = "keypair_resource_policy"
        query = f"query($name: String) {{ {root}(name: $name) {{ {' '.join(fields)} }} }}"
        return dict((await self._admin.query(query, {"name": name}))[root])

    async def create(self, name: str, /, **props: Any) -> None:
        key, kind = {"name": ("String!", name)}, "CreateKeyPairResourcePolicyInput"
        await self.mutate("create_keypair_resource_policy", key, kind, props)

    async def update(self, name: str, /, **props: Any) -> None:
        key, kind = {"name": ("String!", name)}, "ModifyKeyPairResourcePolicyInput"
        await self.mutate("modify_keypair_resource_policy", key, kind, props)

    async def delete(self, name: str) -> None:
        await self.mutate("delete_keypair_resource_policy", {"name": ("String!", name)})


class AsyncStoragePolicy(Mutations):
    """``api_session.UserResourcePolicy`` and ``ProjectResourcePolicy``: ``max_vfolder_count`` (0: any number) and
    ``max_quota_scope_size`` in bytes (-1: no limit)."""

    def __init__(self, transport: Transport, kind: str) -> None:
        super().__init__(transport)
        self._kind = kind

    async def list(self) -> list[dict[str, Any]]:
        root = f"{self._kind}_resource_policies"
        return list((await self._admin.query(f"{{ {root} {{ name max_vfolder_count max_quota_scope_size }} }}"))[root])

    async def create(self, name: str, /, **props: Any) -> None:
        kind = f"Create{self._kind.title()}ResourcePolicyInput"
        await self.mutate(f"create_{self._kind}_resource_policy", {"name": ("String!", name)}, kind, props)

    async def update(self, name: str, /, **props: Any) -> None:
        kind = f"Modify{self._kind.title()}ResourcePolicyInput"
        await self.mutate(f"modify_{self._kind}_resource_policy", {"name": ("String!", name)}, kind, props)

    async def delete(self, name: str) -> None:
        await self.mutate(f"delete_{self._kind}_resource_policy", {"name": ("String!", name)})


class AsyncResourcePreset(Mutations):
    """``api_session.ResourcePreset``: ``resource_slots`` is a map, ``shared_memory`` a size such as ``64m``."""

    async def list(self) -> list[dict[str, Any]]:
        query = "{ resource_presets { name resource_slots shared_memory } }"
        return list((await self._admin.query(query))["resource_presets"])

    async def create(self, name: str, /, **props: Any) -> None:
        await self.mutate("create_resource_preset", {"name": ("String!", name)}, "CreateResourcePresetInput", props)

    async def update(self, name: str, /, **props: Any) -> None:
        await self.mutate("modify_resource_preset", {"name": ("String!", name)}, "ModifyResourcePresetInput", props)

    async def delete(self, name: str) -> None:
        await self.mutate("delete_resource_preset", {"name": ("String!", name)})
