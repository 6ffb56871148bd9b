"""Routes by which a signed-in user proves again, by the password or a one-time password, to be this user."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from aiohttp import web

from ai.backend.common.errors import AuthenticationFailed, InvalidInput, Unavailable
from ai.backend.infra.http.errors import PROBLEM_TYPE
from ai.backend.infra.http.routes import Call, route
from ai.backend.web.cookies import CookiePolicy
from ai.backend.web.login.body_api import MAX_BODY_BYTES, read_fields
from ai.backend.web.login.service import LoginService
from ai.backend.web.managers.pool import Keypair
from ai.backend.web.managers.sign_in import ManagerSignIn

_PROOF_FIELDS = ("password", "otp")
_MAX_LENGTH = 256
_MAX_PROOF_LENGTH = 3_072
"""Browsers keep cookies of 4,096 bytes."""


class ProofApi:
    """Obtains the manager's proof that a signed-in user has given the password again, and keeps it in a cookie.

    No script reads this cookie; requests below ``/func`` carry it.
    """

    def __init__(self, logins: LoginService, manager: ManagerSignIn, cookies: CookiePolicy) -> None:
        self._logins = logins
        self._manager = manager
        self._cookies = cookies

    @route("POST", "/server/proof", auth=False, kind="relay", max_body=MAX_BODY_BYTES)
    async def prove(self, call: Call) -> web.Response:
        """Has the manager check the user's ``password`` or ``otp``, and stores the manager's proof in a cookie.

        The proof is valid for some minutes. Failures count as those of sign-ins do.
        """
        login = await self._logins.find(self._cookies.token_of(call.request))
        if login is None:
            raise AuthenticationFailed("You are not logged in.")
        fields = await read_fields(call, scheme=self._cookies.scheme)
        given_fields = {
            field_name: fields[field_name]
            for field_name in _PROOF_FIELDS
            if isinstance(fields.get(field_name), str) and fields[field_name]
        }
        if len(given_fields) != 1 or any(len(field_text) > _MAX_LENGTH for field_text in given_fields.values()):
            raise InvalidInput("Give your password or a one-time password.", data={"password": "missing"})
        keypair = Keypair(login.secret.access_key, login.secret.secret_key)
        ask_manager = partial(self._manager.prove, keypair)
        status, document = await self._logins.prove(login, given_fields, address=call.address, ask_manager=ask_manager)
        if status != 200:
            return web.json_response(document, status=status, content_type=PROBLEM_TYPE)
        proof, expires_at = document.get("proof"), _time_of(document.get("expires_at"))
        if not isinstance(proof, str) or len(proof) > _MAX_PROOF_LENGTH or expires_at is None:
            raise Unavailable("The manager gave no proof; try again.")
        response = web.json_response({"expires": expires_at.isoformat()})
        age_s = max(1, int((expires_at - datetime.now(UTC)).total_seconds()))
        self._cookies.set_proof(response, proof, max_age_s=age_s)
        return response

    @route("DELETE", "/server/proof", auth=False, kind="relay")
    async def forget(self, call: Call) -> web.Response:
        """Deletes the cookie with the proof in this browser."""
        response = web.json_response({})
        self._cookies.clear_proof(response)
        return response


def _time_of(time_text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(time_text))
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
