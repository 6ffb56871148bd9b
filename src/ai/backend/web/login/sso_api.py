"""Routes of sign-in through other services (single sign-on), to which the browser is redirected: ``/server/sso/*``.

The ticket of the manager lies in a cookie of this browser. A link or form of another site can therefore neither sign a
browser in as somebody else nor spend a code of it. The last answer is a page and not a redirect: a browser does not
send the ``Strict`` cookie of the login session along a chain of redirects that began at another site.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from aiohttp import web

from ai.backend.common.errors import AuthenticationFailed, InvalidInput
from ai.backend.infra.http.routes import Call, route
from ai.backend.web.cookies import CookiePolicy
from ai.backend.web.guard import public_origin
from ai.backend.web.login.service import LoginService
from ai.backend.web.managers.sign_in import ManagerSignIn

TICKET_S = 600
_MAX_PATH_LENGTH = 1_024
_MAX_PARAMETERS = 16
_MAX_TICKET_LENGTH = 3_072
"""Browsers keep cookies of 4,096 bytes."""
_PATH_PATTERN = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")
_PAGE_HEAD = '<!doctype html><meta charset="utf-8"><title>Sign-in</title>'
_REDIRECT_PAGE = _PAGE_HEAD + '<meta http-equiv="refresh" content="0;url={path}"><a href="{path}">Go on</a>'
_REFUSAL_PAGE = _PAGE_HEAD + '<p>{text}</p><p><a href="/">Back</a></p>'


class SsoApi:
    """Redirects browsers to the sign-in services that the manager names, and signs users in when they come back."""

    def __init__(self, logins: LoginService, manager: ManagerSignIn, cookies: CookiePolicy, *, domain: str) -> None:
        self._logins = logins
        self._manager = manager
        self._cookies = cookies
        self._domain = domain

    @route("GET", "/server/sso", auth=False, kind="relay")
    async def providers(self, call: Call) -> dict[str, Any]:
        """Names the services where a browser may sign in."""
        _, document = await self._manager.providers()
        provider_names = document.get("providers")
        return {
            "providers": [provider_name for provider_name in provider_names if isinstance(provider_name, str)]
            if isinstance(provider_names, list)
            else []
        }

    @route("GET", "/server/sso/{provider}/login", auth=False, kind="relay")
    async def begin(self, call: Call) -> web.Response:
        """Leads the browser to a service; ``next`` is the path that it sees afterwards."""
        path = same_origin_path(call.request.query.get("next", ""))
        redirect_fields = {"provider": call.params["provider"], "return_url": self._return_url(call)}
        _, document = await self._manager.begin_redirect(redirect_fields, address=call.address)
        url, ticket = document.get("url"), document.get("ticket")
        if not isinstance(url, str) or not isinstance(ticket, str):
            return _refusal_page(document)
        if not url.startswith(("https://", "http://")) or len(ticket) > _MAX_TICKET_LENGTH:
            raise InvalidInput("The sign-in service cannot be used.")
        response = web.Response(status=302, headers={"Location": url})
        encoded_path = base64.urlsafe_b64encode(path.encode()).decode()
        self._cookies.set_ticket(response, f"{ticket}|{encoded_path}", max_age_s=TICKET_S)
        return response

    @route("GET", "/server/sso/{provider}/callback", auth=False, kind="relay")
    async def finish(self, call: Call) -> web.Response:
        """Begins a login session of the user who came back, in place of the browser's earlier one."""
        ticket, _, encoded_path = (self._cookies.ticket_of(call.request) or "").partition("|")
        parameters = dict(call.request.query)
        if not ticket or len(parameters) > _MAX_PARAMETERS:
            raise AuthenticationFailed("This sign-in took too long, or began in another browser: begin anew.")
        finish_fields = {
            "provider": call.params["provider"],
            "ticket": ticket,
            "parameters": parameters,
            "domain": self._domain,
        }
        client = call.request.headers.get("User-Agent", "")
        sign_in = await self._logins.finish_redirect(finish_fields, address=call.address, client=client)
        if sign_in.token is None:
            refusal_page = _refusal_page(sign_in.problem)
            self._cookies.clear_ticket(refusal_page)
            return refusal_page
        earlier_login = await self._logins.find(self._cookies.token_of(call.request))
        if earlier_login is not None:
            await self._logins.sign_out(earlier_login)
        path = html.escape(same_origin_path(_decode_path(encoded_path)), quote=True)
        response = web.Response(text=_REDIRECT_PAGE.format(path=path), content_type="text/html")
        self._cookies.clear_ticket(response)
        self._cookies.set(response, sign_in.token)
        return response

    def _return_url(self, call: Call) -> str:
        origin = public_origin(call.request, scheme=self._cookies.scheme)
        return f"{origin}/server/sso/{quote(call.params['provider'], safe='')}/callback"


def same_origin_path(path_text: str) -> str:
    """Returns a path of this site, or ``/`` for anything that a browser could take for another site's address."""
    return path_text if len(path_text) <= _MAX_PATH_LENGTH and _PATH_PATTERN.fullmatch(path_text) else "/"


def _refusal_page(problem: Mapping[str, Any]) -> web.Response:
    """Returns a page that shows a problem of the manager to the user of the browser."""
    status, detail = problem.get("status"), problem.get("detail")
    message_html = html.escape(detail if isinstance(detail, str) else AuthenticationFailed.title)
    response_status = status if isinstance(status, int) and 400 <= status < 600 else HTTPStatus.UNAUTHORIZED
    return web.Response(status=response_status, text=_REFUSAL_PAGE.format(text=message_html), content_type="text/html")


def _decode_path(encoded_path: str) -> str:
    try:
        return base64.b64decode(encoded_path, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError):
        return ""
