"""Route by which a user changes an expired password before signing in (wire contract 2.10)."""

from __future__ import annotations

from aiohttp import web

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.http.errors import PROBLEM_TYPE
from ai.backend.infra.http.routes import Call, route
from ai.backend.web.login.body_api import MAX_BODY_BYTES, read_fields
from ai.backend.web.login.service import LoginService

_FIELD_NAMES = ("username", "current_password", "new_password")


class PasswordApi:
    """Changes passwords without a login session."""

    def __init__(self, logins: LoginService, *, domain: str, scheme: str) -> None:
        self._logins = logins
        self._domain = domain
        self._scheme = scheme

    @route("POST", "/server/update-password-no-auth", auth=False, kind="relay", max_body=MAX_BODY_BYTES)
    async def update(self, call: Call) -> web.Response:
        """Changes a password by the present one. Failures count as those of sign-ins do."""
        fields = await read_fields(call, scheme=self._scheme)
        missing_fields = {
            field_name: "missing"
            for field_name in _FIELD_NAMES
            if not isinstance(fields.get(field_name), str) or not fields[field_name]
        }
        if missing_fields:
            raise InvalidInput("Name, present and new password are needed.", data=missing_fields)
        update_fields = {**{field_name: fields[field_name] for field_name in _FIELD_NAMES}, "domain": self._domain}
        if isinstance(fields.get("otp"), str) and fields["otp"]:
            update_fields["otp"] = fields["otp"]
        status, document = await self._logins.change_password(update_fields, address=call.address)
        return web.json_response(
            document, status=status, content_type="application/json" if status < 400 else PROBLEM_TYPE
        )
