"""Signs users in and changes passwords at the managers (spec 03-08)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ai.backend.web.managers.pool import Keypair, ManagerPool

_JSON = {"Content-Type": "application/json"}


class ManagerSignIn:
    """Sends requests about sign-ins to the managers, with the browser's address for the managers' own limits."""

    def __init__(self, managers: ManagerPool) -> None:
        self._managers = managers

    async def authorize(self, fields: Mapping[str, str], *, address: str) -> tuple[int, dict[str, Any]]:
        """Returns status and answer of ``POST /auth/authorize``. Raises Unavailable."""
        return await self._post_json("/auth/authorize", fields, address)

    async def authorize_token(self, fields: Mapping[str, Any], *, address: str) -> tuple[int, dict[str, Any]]:
        """Returns status and answer of ``POST /auth/authorize-token``. Raises Unavailable."""
        return await self._post_json("/auth/authorize-token", fields, address)

    async def update_password(self, fields: Mapping[str, str], *, address: str) -> tuple[int, dict[str, Any]]:
        """Returns status and answer of ``POST /auth/update-password-no-auth``. Raises Unavailable."""
        return await self._post_json("/auth/update-password-no-auth", fields, address)

    async def begin_redirect(self, fields: Mapping[str, str], *, address: str) -> tuple[int, dict[str, Any]]:
        """Returns status and answer of ``POST /auth/redirect``. Raises Unavailable."""
        return await self._post_json("/auth/redirect", fields, address)

    async def finish_redirect(self, fields: Mapping[str, Any], *, address: str) -> tuple[int, dict[str, Any]]:
        """Returns status and answer of ``POST /auth/redirect/finish``. Raises Unavailable."""
        return await self._post_json("/auth/redirect/finish", fields, address)

    async def providers(self) -> tuple[int, dict[str, Any]]:
        """Returns status and answer of ``GET /auth/providers``. Raises Unavailable."""
        return await self._managers.read_json("GET", "/auth/providers")

    async def role(self, keypair: Keypair, *, address: str) -> str:
        """Returns the role of a keypair's user.

        Returns an empty text if the manager refuses the keypair. Raises Unavailable.
        """
        headers = {"X-Forwarded-For": address}
        _, document = await self._managers.read_json("GET", "/auth/role", keypair=keypair, headers=headers)
        return str(document.get("global_role", ""))

    async def prove(self, keypair: Keypair, fields: Mapping[str, str], *, address: str) -> tuple[int, dict[str, Any]]:
        """Returns status and answer of ``POST /auth/proof``, signed. Raises Unavailable."""
        headers = {**_JSON, "X-Forwarded-For": address}
        body = msgspec.json.encode(fields)
        return await self._managers.read_json("POST", "/auth/proof", keypair=keypair, headers=headers, body=body)

    async def _post_json(self, path: str, fields: Mapping[str, Any], address: str) -> tuple[int, dict[str, Any]]:
        headers = {**_JSON, "X-Forwarded-For": address}
        return await self._managers.read_json("POST", path, headers=headers, body=msgspec.json.encode(fields))
