"""Domains, groups and policies as superadmins change them over GraphQL (client wire contract 3.2).

``props`` are the fields of the mutation's input; those that are left out stay as they are. ``allowed_vfolder_hosts``
maps a storage host to the names of what may be done there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from ai.backend.client.exceptions import BackendAPIError
from ai.backend.client.func.admin import AsyncAdmin
from ai.backend.client.transport import Transport

_STRUCTURED = ("allowed_vfolder_hosts", "total_resource_slots", "resource_slots", "driver_opts", "scheduler_opts")


class Mutations:
    """An area of the API that changes objects over GraphQL."""

    def __init__(self, transport: Transport) -> None:
        self._admin = AsyncAdmin(transport)

    async def _mutate(
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


class AsyncDomain(Mutations):
    """``api_session.Domain``."""

    async def create(self, name: str, /, **props: Any) -> None:
        await self._mutate("create_domain", {"name": ("String!", name)}, "DomainInput", props)

    async def update(self, name: str, /, **props: Any) -> None:
        await self._mutate("modify_domain", {"name": ("String!", name)}, "ModifyDomainInput", props)


class AsyncGroup(Mutations):
    """``api_session.Group``."""

    async def create(self, domain_name: str, name: str, /, **props: Any) -> None:
        """``type`` may be ``MODEL_STORE``."""
        props = {"domain_name": domain_name, **props}
        await self._mutate("create_group", {"name": ("String!", name)}, "GroupInput", props)

    async def update(self, gid: UUID | str, /, **props: Any) -> None:
        """``user_update_mode`` (``add`` or ``remove``) goes with ``user_uuids``."""
        await self._mutate("modify_group", {"gid": ("UUID!", str(gid))}, "ModifyGroupInput", props)


class AsyncKeypairResourcePolicy(Mutations):
    """``api_session.KeypairResourcePolicy``."""

    async def create(self, name: str, /, **props: Any) -> None:
        key, kind = {"name": ("String!", name)}, "CreateKeyPairResourcePolicyInput"
        await self._mutate("create_keypair_resource_policy", key, kind, props)

    async def update(self, name: str, /, **props: Any) -> None:
        key, kind = {"name": ("String!", name)}, "ModifyKeyPairResourcePolicyInput"
        await self._mutate("modify_keypair_resource_policy", key, kind, props)

    async def delete(self, name: str) -> None:
        await self._mutate("delete_keypair_resource_policy", {"name": ("String!", name)})


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
        await self._mutate(f"create_{self._kind}_resource_policy", {"name": ("String!", name)}, kind, props)

    async def update(self, name: str, /, **props: Any) -> None:
        kind = f"Modify{self._kind.title()}ResourcePolicyInput"
        await self._mutate(f"modify_{self._kind}_resource_policy", {"name": ("String!", name)}, kind, props)

    async def delete(self, name: str) -> None:
        await self._mutate(f"delete_{self._kind}_resource_policy", {"name": ("String!", name)})
