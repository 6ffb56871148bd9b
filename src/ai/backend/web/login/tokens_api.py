"""The route of a sign-in by a token that another site has given (wire contract 2.10, ``sToken``)."""

from __future__ import annotations

from aiohttp import web

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.http.routes import Call, route
from ai.backend.web.cookies import CookiePolicy
from ai.backend.web.login.api import sign_in_response
from ai.backend.web.login.body_api import MAX_BODY_BYTES, read_fields
from ai.backend.web.login.service import LoginService

_MAX_TOKEN_LENGTH = 8_192


class TokenLoginApi:
    """Signs browsers in by a token that another site has issued.

    The token lies in a cookie of the domain that the sites share, or comes in the request. The guard lets no page of
    another site ask for it.
    """

    def __init__(self, logins: LoginService, cookies: CookiePolicy, *, domain: str, token_name: str) -> None:
        self._logins = logins
        self._cookies = cookies
        self._domain = domain
        self._token_name = token_name

    @route("POST", "/server/token-login", auth=False, kind="relay", max_body=MAX_BODY_BYTES)
    async def login(self, call: Call) -> web.Response:
        """Signs the user in whom a token names, once; a refusal has status 200 and ``authenticated`` false."""
        if await self._logins.find(self._cookies.token_of(call.request)) is not None:
            raise InvalidInput("You have logged in already.", data={"session": "already logged in"})
        fields = await read_fields(call, scheme=self._cookies.scheme)
        token = fields.get("token") or fields.get(self._token_name) or call.request.cookies.get(self._token_name)
        if not isinstance(token, str) or not token or len(token) > _MAX_TOKEN_LENGTH:
            raise InvalidInput("The token is missing.", data={self._token_name: "missing"})
        client = call.request.headers.get("User-Agent", "")
        token_fields = {"token": token, "domain": self._domain}
        sign_in = await self._logins.sign_in_token(token_fields, address=call.address, client=client)
        response = sign_in_response(sign_in, self._cookies)
        # It is spent, or good for nothing.
        response.del_cookie(self._token_name, path="/", secure=self._cookies.scheme == "https")
        return response
