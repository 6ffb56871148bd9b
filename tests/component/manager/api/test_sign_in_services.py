"""Sign-in by a real OpenID provider: a browser, the web server, the manager."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from ai.backend.hook.oidc.plugin import OidcSignOn
from ai.backend.hook.oidc.settings import OidcSettings
from ai.backend.web.composition import WebServer
from ai.backend.web.config.settings import WebSettings
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_people_api import MODIFY
from tests.component.manager.api.test_resource_groups_api import ask
from tests.support.oidc_provider import CLIENT_ID, CLIENT_SECRET, OidcProvider

CLAIMS = {"sub": "17", "email": "ann@example.org", "email_verified": True, "name": "Ann", "groups": ["research"]}


@dataclass
class House:
    api: Api
    provider: OidcProvider
    url: str

    def browser(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def sent_back(self, browser: aiohttp.ClientSession, path: str = "/") -> URL:
        """Returns the URL at which the provider sends a browser back."""
        begin = URL(f"{self.url}/server/sso/oidc/login").with_query({"next": path})
        async with browser.get(begin, allow_redirects=False) as response:
            assert response.status == 302, await response.text()
            url = response.headers["Location"]
        async with browser.get(url, allow_redirects=False) as response:
            assert response.status == 302
            return URL(response.headers["Location"])

    async def signed_in(self, browser: aiohttp.ClientSession, path: str = "/") -> tuple[int, str]:
        async with browser.get(await self.sent_back(browser, path), allow_redirects=False) as response:
            return response.status, await response.text()

    async def who(self, browser: aiohttp.ClientSession) -> dict[str, Any]:
        query = {"query": "{ user { email role domain_name groups { name } } }"}
        async with browser.post(f"{self.url}/func/admin/gql", json=query) as response:
            answer = await response.json()
            return dict(answer["user"] if "user" in answer else answer.get("data", answer).get("user", answer))


@pytest.fixture
async def house(api: Api, tmp_path: Path) -> AsyncIterator[House]:
    tables = {
        "service": {"port": 0},
        "session": {"file": str(tmp_path / "logins.db")},
        "api": {"endpoint": f"http://127.0.0.1:{api.port}"},
    }
    server = WebServer(WebSettings.model_validate(tables))
    await server.start()
    return_url = f"{server.url}/server/sso/oidc/callback"
    provider = OidcProvider([return_url], claims=dict(CLAIMS))
    provider.start()
    given = {
        "issuer": provider.issuer,
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
        "return_urls": [return_url],
        "groups": {"research": {"projects": ["lab"]}, "superadmin": {"projects": ["default"]}},
        "allows_http": True,
    }
    hook = OidcSignOn(OidcSettings.model_validate(given))
    await hook.start()
    api.cluster.manager.services.hooks.plugins = [("oidc", hook)]
    made = await ask(api, 'mutation { create_group(name: "lab", props: {domain_name: "default"}) { ok msg } }')
    assert made["ok"]
    yield House(api, provider, server.url)
    await hook.stop()
    provider.stop()
    await server.stop()


async def test_a_browser_signs_in_at_a_provider(house: House) -> None:
    async with house.browser() as browser:
        async with browser.get(f"{house.url}/server/sso") as response:
            assert await response.json() == {"providers": ["oidc"]}
        status, page = await house.signed_in(browser, "/sessions?status=RUNNING")
        assert (status, "url=/sessions?status=RUNNING" in page) == (200, True)
        told = await house.who(browser)
        assert told == {
            "email": "ann@example.org",
            "role": "user",
            "domain_name": "default",
            "groups": [{"name": "lab"}],
        }
        names = {cookie.key for cookie in browser.cookie_jar if cookie.value != "none"}
        assert names == {"backendai"}, "the ticket is gone"

        house.provider.claims = {**CLAIMS, "groups": []}
        first = {cookie.key: cookie.value for cookie in browser.cookie_jar}
        assert (await house.signed_in(browser))[0] == 200
        assert (await house.who(browser))["groups"] == [], "who leaves a group leaves its projects"
        assert first != {cookie.key: cookie.value for cookie in browser.cookie_jar}
    async with aiohttp.ClientSession(cookies=first) as thief, thief.get(f"{house.url}/func/auth/role") as response:
        assert response.status == 401, "the session before is over"
    history = (await house.api.admin.request("GET", "/auth/sign-ins?email=ann@example.org")).json()
    assert [(item["method"], item["outcome"]) for item in history["items"]] == [("oidc", "ok")] * 2


async def test_nobody_is_signed_in_by_the_link_of_another(house: House) -> None:
    """Fixation: an attacker sends the URL at which the provider sent the attacker's own browser back."""
    async with house.browser() as attacker, house.browser() as victim:
        url = await house.sent_back(attacker)
        async with victim.get(url, allow_redirects=False) as response:
            assert response.status == 401
        await house.sent_back(victim)
        async with victim.get(url, allow_redirects=False) as response:
            assert response.status == 403
            assert "another browser" in await response.text()
        assert not [cookie for cookie in victim.cookie_jar if cookie.value != "none"]
        async with attacker.get(url, allow_redirects=False) as response:
            assert response.status == 200
        async with attacker.get(url, allow_redirects=False) as response:
            assert response.status == 401, "once"


async def test_browsers_stay_on_this_site(house: House) -> None:
    async with house.browser() as browser:
        for path in ("https://evil.example", "//evil.example"):
            _, page = await house.signed_in(browser, path)
            assert re.findall(r'url=([^"]*)"', page) == ["/"]


async def test_paths_are_text_in_the_page(house: House) -> None:
    async with house.browser() as browser:
        _, page = await house.signed_in(browser, '/"><script>alert(1)</script>')
        assert "<script>" not in page


async def test_a_provider_makes_nobody_an_administrator(house: House) -> None:
    for groups in (["superadmin"], ["superadmin", "admin"]):
        house.provider.claims = {**CLAIMS, "email": "admin@local", "groups": groups}
        async with house.browser() as browser:
            status, page = await house.signed_in(browser)
            assert (status, "Administrators sign in" in page) == (403, True)
    house.provider.claims = {**CLAIMS, "groups": ["superadmin"]}
    async with house.browser() as browser:
        assert (await house.signed_in(browser))[0] == 200
        assert (await house.who(browser))["role"] == "user"
        assert (await ask(house.api, MODIFY, e="ann@example.org", p={"status": "inactive"}))["ok"]
        assert (await house.signed_in(browser))[0] == 401


async def test_tickets_are_sealed_and_old_ones_are_refused(house: House) -> None:
    services = house.api.cluster.manager.services
    begun = await services.sign_in.begin_redirect("oidc", f"{house.url}/server/sso/oidc/callback")
    for secret in ("verifier", "nonce", "state"):
        assert secret not in begun.ticket
    changed = begun.ticket[:50] + ("-" if begun.ticket[50] == "_" else "_") + begun.ticket[51:]
    for ticket in ("", "x", begun.ticket[:-6] + "AAAAAA", changed):
        reply = await house.api.user.request(
            "POST", "/auth/redirect/finish", json={"provider": "oidc", "ticket": ticket, "parameters": {}}
        )
        assert reply.status == 401, ticket
    for provider, url in (("else", "https://a.example"), ("oidc", "https://evil.example")):
        body = {"provider": provider, "return_url": url}
        assert (await house.api.user.request("POST", "/auth/redirect", json=body)).status in (403, 404)
