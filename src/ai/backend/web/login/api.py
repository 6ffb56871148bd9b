"""Routes of sign-in: ``/server/*`` (wire contract 2.10 and 5)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from aiohttp import web

from ai.backend.common.errors import AuthenticationFailed, Forbidden, InvalidInput, NotFound, Unavailable
from ai.backend.infra.http.errors import PROBLEM_BASE
from ai.backend.infra.http.routes import Call, route
from ai.backend.web.cookies import CookiePolicy
from ai.backend.web.login.body_api import MAX_BODY_BYTES, read_fields
from ai.backend.web.login.model import PUBLIC_ID_LENGTH, Login, LoginSecret, StoredLogin
from ai.backend.web.login.service import LoginService, SignIn
from ai.backend.web.managers.pool import Keypair
from ai.backend.web.managers.sign_in import ManagerSignIn

_REGISTRATION = "two_factor_registration_token"
log = logging.getLogger(__name__)


class LoginApi:
    """Signs browsers and clients in session mode in and out."""

    def __init__(self, logins: LoginService, manager: ManagerSignIn, cookies: CookiePolicy, *, domain: str) -> None:
        self._logins = logins
        self._manager = manager
        self._cookies = cookies
        self._domain = domain

    @route("POST", "/server/login", auth=False, kind="relay", max_body=MAX_BODY_BYTES)
    async def login(self, call: Call) -> web.Response:
        """Signs a user in by e-mail address and password; a refusal has status 200 and ``authenticated`` false."""
        if await self._find_login(call) is not None:
            raise InvalidInput("You have logged in already.", data={"session": "already logged in"})
        if self._cookies.is_ambiguous(call.request):
            message = "Your browser has two login cookies of this host: remove the site's cookies, and log in again."
            raise InvalidInput(message, data={"session": "two cookies"})
        fields = await read_fields(call, scheme=self._cookies.scheme)
        for field_name in ("username", "password"):
            if not isinstance(fields.get(field_name), str) or not fields[field_name] or len(fields[field_name]) > 256:
                raise InvalidInput(f"The {field_name} is missing.", data={field_name: "missing"})
        authorize_fields = {
            "type": "keypair",
            "domain": self._domain,
            "username": fields["username"],
            "password": fields["password"],
        }
        if isinstance(fields.get("otp"), str) and fields["otp"]:
            authorize_fields["otp"] = fields["otp"]
        try:
            client = call.request.headers.get("User-Agent", "")
            sign_in = await self._logins.sign_in(authorize_fields, address=call.address, client=client)
        except Unavailable as error:
            return _refusal_response(
                {"type": PROBLEM_BASE + error.code, "title": error.title, "details": error.message},
                HTTPStatus.BAD_GATEWAY,
            )
        return sign_in_response(sign_in, self._cookies)

    @route("POST", "/server/login-check", auth=False, kind="relay")
    async def login_check(self, call: Call) -> web.Response:
        """Says whether the browser has a valid login session."""
        login = await self._find_login(call)
        if login is None:
            response = web.json_response({"authenticated": False, "data": None, "session_id": None})
            self._cookies.occupy(call.request, response)
            return response
        login_answer = {
            "authenticated": True,
            "data": _public_fields(login.secret),
            "session_id": login.login_id[:PUBLIC_ID_LENGTH],
        }
        return web.json_response(login_answer)

    @route("POST", "/server/logout", auth=False, kind="relay", max_body=MAX_BODY_BYTES)
    async def logout(self, call: Call) -> web.Response:
        """Ends the login session; with ``{"everywhere": true}`` all sessions of the user."""
        fields = await read_fields(call, scheme=self._cookies.scheme)
        login = await self._find_login(call)
        if login is not None:
            await self._logins.sign_out(login, everywhere=fields.get("everywhere") is True)
        response = web.json_response({})
        self._cookies.clear(response)
        self._cookies.clear_proof(response)
        return response

    @route("POST", "/server/extend-login-session", auth=False, kind="relay")
    async def extend(self, call: Call) -> web.Response:
        """Begins the life of the login session anew."""
        login = await self._find_login(call)
        token = self._cookies.token_of(call.request)
        if login is None or token is None:
            raise AuthenticationFailed("You are not logged in.")
        extended_login = await self._logins.extend(login)
        response = web.json_response(
            {"status": HTTPStatus.CREATED, "expires": extended_login.expires_at.isoformat()}, status=201
        )
        self._cookies.set(response, token)
        return response

    @route("GET", "/server/login-sessions", auth=False, kind="relay")
    async def sessions(self, call: Call) -> dict[str, Any]:
        """Lists the login sessions of the user, newest first."""
        login = await self._require_login(call)
        return {"items": [_login_item(stored_login, login) for stored_login in await self._logins.sessions(login)]}

    @route("DELETE", "/server/login-sessions/{session_id}", auth=False, kind="relay")
    async def end_session(self, call: Call) -> web.Response:
        """Ends one login session of the user."""
        login = await self._require_login(call)
        session_id = call.params["session_id"]
        if not await self._logins.end(login.secret.username, session_id):
            raise NotFound("You have no such login session.")
        response = web.json_response({})
        if login.login_id.startswith(session_id):
            self._cookies.clear(response)
        return response

    @route("GET", "/server/users/{email}/login-sessions", auth=False, kind="relay")
    async def sessions_of_user(self, call: Call) -> dict[str, Any]:
        """Lists the login sessions of any user at this web server, for superadmins."""
        login = await self._require_superadmin(call)
        return {
            "items": [
                _login_item(stored_login, login)
                for stored_login in await self._logins.sessions_of(call.params["email"])
            ]
        }

    @route("DELETE", "/server/users/{email}/login-sessions/{session_id}", auth=False, kind="relay")
    async def end_session_of_user(self, call: Call) -> web.Response:
        """Ends a login session of any user, for superadmins."""
        login = await self._require_superadmin(call)
        email, session_id = call.params["email"], call.params["session_id"]
        if not await self._logins.end(email, session_id):
            raise NotFound("That user has no such login session.")
        log.info("%s ended a login session of %s", login.secret.username, email.lower())
        return web.json_response({})

    async def _require_superadmin(self, call: Call) -> Login:
        """Returns the request's login session if its user is a superadmin, by asking the manager for the role now.

        The role of the sign-in may be old. Raises Forbidden.
        """
        login = await self._require_login(call)
        keypair = Keypair(login.secret.access_key, login.secret.secret_key)
        if await self._manager.role(keypair, address=call.address) != "superadmin":
            raise Forbidden("Only superadmins see the login sessions of others.")
        return login

    async def _require_login(self, call: Call) -> Login:
        login = await self._find_login(call)
        if login is None:
            raise AuthenticationFailed("You are not logged in.")
        return login

    async def _find_login(self, call: Call) -> Login | None:
        is_use = self._cookies.is_attended(call.request)
        return await self._logins.find(self._cookies.token_of(call.request), is_use=is_use)


def sign_in_response(sign_in: SignIn, cookies: CookiePolicy) -> web.Response:
    """Returns the answer to a sign-in, with the cookie of its session if there is one."""
    if sign_in.token is None or sign_in.secret is None:
        return _refusal_response(_refusal_details(sign_in))
    response = web.json_response({"authenticated": True, "data": _public_fields(sign_in.secret)})
    cookies.set(response, sign_in.token)
    return response


def _login_item(stored_login: StoredLogin, login: Login) -> dict[str, Any]:
    return {
        "session_id": stored_login.public_id,
        "created_at": stored_login.created_at.isoformat(),
        "expires_at": stored_login.expires_at.isoformat(),
        "address": stored_login.address,
        "client": stored_login.client,
        "is_current": stored_login.login_id == login.login_id,
    }


def _public_fields(secret: LoginSecret) -> dict[str, str]:
    return {"access_key": secret.access_key, "role": secret.role, "status": secret.status}


def _refusal_details(sign_in: SignIn) -> dict[str, Any]:
    problem = sign_in.problem
    data = problem.get("data")
    details = (
        problem.get("msg") or problem.get("detail") or (data.get("details") if isinstance(data, Mapping) else None)
    )
    return {
        "type": problem.get("type", PROBLEM_BASE + AuthenticationFailed.code),
        "title": problem.get("title", AuthenticationFailed.title),
        "details": details or AuthenticationFailed.title,
        **({_REGISTRATION: data[_REGISTRATION]} if isinstance(data, Mapping) and _REGISTRATION in data else {}),
    }


def _refusal_response(data: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    return web.json_response({"authenticated": False, "data": data}, status=status)
