"""Sign-in by a token of another site: a browser, the web server, the manager, a plugin."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ai.backend.manager.identity.sign_in import MAX_TOKEN_LIFE
from ai.backend.plugin.hooks import AbstractHook, TokenSignOn, TokenUser
from ai.backend.web.composition import WebServer
from ai.backend.web.config.settings import WebSettings
from tests.component.hook.test_token import Portal
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_people_api import MODIFY, new_user
from tests.component.manager.api.test_resource_groups_api import ask

EMAIL = "ann@example.org"


@dataclass
class House:
    api: Api
    portal: Portal
    url: str

    def browser(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def login(
        self,
        browser: aiohttp.ClientSession,
        token: str,
        *,
        by_cookie: bool = True,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        headers = dict(headers or {})
        if by_cookie:
            headers["Cookie"] = "; ".join([f"sToken={token}", *(f"{c.key}={c.value}" for c in browser.cookie_jar)])
        fields = {} if by_cookie else {"sToken": token}
        async with browser.post(f"{self.url}/server/token-login", json=fields, headers=headers) as response:
            return response.status, await response.json(content_type=None)

    async def who(self, browser: aiohttp.ClientSession) -> str | None:
        query = {"query": "{ user { email } }"}
        async with browser.post(f"{self.url}/func/admin/gql", json=query) as response:
            return (await response.json())["data"]["user"]["email"] if response.status == 200 else None


@pytest.fixture
async def house(api: Api, tmp_path: Path) -> AsyncIterator[House]:
    portal = Portal(tmp_path)
    tables = {
        "service": {"port": 0},
        "session": {"file": str(tmp_path / "logins.db"), "address_allowed_fail_count": 5},
        "api": {"endpoint": f"http://127.0.0.1:{api.port}"},
    }
    server = WebServer(WebSettings.model_validate(tables))
    await server.start()
    api.cluster.manager.services.hooks.plugins = [("token", portal.hook())]
    await ask(api, 'mutation { create_group(name: "lab", props: {domain_name: "default"}) { ok } }')
    yield House(api, portal, server.url)
    await server.stop()


async def test_a_browser_is_signed_in_by_a_token(house: House) -> None:
    for by_cookie in (True, False):
        async with house.browser() as browser:
            status, answer = await house.login(browser, house.portal.token(), by_cookie=by_cookie)
            assert (status, answer["authenticated"], answer["data"]["role"]) == (200, True, "user")
            assert "secret_key" not in answer["data"]
            assert await house.who(browser) == EMAIL
            assert (await house.login(browser, house.portal.token()))[0] == 400, "logged in already"


async def test_a_token_is_good_once_also_at_once(house: House) -> None:
    token = house.portal.token()
    async with house.browser() as one, house.browser() as two, house.browser() as three:
        browsers = (one, two, three)
        answers = await asyncio.gather(*(house.login(browser, token) for browser in browsers))
        assert sorted(answer["authenticated"] for _, answer in answers) == [False, False, True]
    async with house.browser() as thief:
        _, answer = await house.login(thief, token)
        assert answer["authenticated"] is False
        assert "was used" in answer["data"]["details"]
        assert await house.who(thief) is None


async def test_forged_and_expired_tokens_sign_nobody_in_and_are_counted(house: House) -> None:
    now = int(time.time())
    async with house.browser() as browser:
        for token in (
            house.portal.token(iat=now - 300, exp=now - 200),
            house.portal.token(aud="https://other.example"),
            house.portal.token()[:-4] + "AAAA",
            "no-token",
            house.portal.token(iss="https://elsewhere.example"),
        ):
            status, answer = await house.login(browser, token)
            assert (status, answer["authenticated"]) == (200, False)
        assert (await house.login(browser, house.portal.token()))[0] == 429, "of this address"


async def test_pages_of_other_sites_sign_nobody_in(house: House) -> None:
    token = house.portal.token()
    async with house.browser() as browser:
        for name, value in (("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site")):
            assert (await house.login(browser, token, headers={name: value}))[0] == 403
        async with browser.get(f"{house.url}/server/token-login?sToken={token}"):
            assert await house.who(browser) is None, "a link alone signs nobody in"
        assert (await house.login(browser, token))[1]["authenticated"] is True, "it was not spent"


async def test_the_checks_of_every_sign_in_are_made(house: House) -> None:
    root = house.portal.token(email="admin@local")
    async with house.browser() as browser:
        status, answer = await house.login(browser, root)
        assert (status, answer["authenticated"]) == (200, False)
        assert "Administrators" in answer["data"]["details"]
        await house.login(browser, house.portal.token())
    assert (await ask(house.api, MODIFY, e=EMAIL, p={"allowed_client_ip": ["192.0.2.0/24"]}))["ok"]
    async with house.browser() as browser:
        assert (await house.login(browser, house.portal.token()))[1]["authenticated"] is False
    history = await house.api.admin.request("GET", f"/auth/sign-ins?email={EMAIL}")
    assert [item["method"] for item in history.json()["items"]] == ["token", "token"]
    assert history.json()["items"][1]["outcome"] == "ok"


async def test_without_a_token_there_is_nothing_to_ask(house: House) -> None:
    async with house.browser() as browser:
        for fields in ({}, {"sToken": ""}, {"sToken": 7}, {"sToken": "x" * 9_000}):
            async with browser.post(f"{house.url}/server/token-login", json=fields) as response:
                assert response.status == 400, fields


class Careless(AbstractHook):
    """Takes every token, for a time that a test says."""

    life = timedelta(minutes=1)
    token_id = "one"

    async def sign_on_token(self, request: TokenSignOn) -> TokenUser:
        from datetime import UTC, datetime

        from ai.backend.plugin.hooks import SiteUser

        user = SiteUser(email="ann@local")
        return TokenUser(user=user, token_id=self.token_id, expires_at=datetime.now(UTC) + self.life)


async def test_the_manager_trusts_no_plugin_with_the_life_of_tokens(api: Api) -> None:
    await new_user(api, "ann@local")
    hook = Careless(None)

    async def status(token: str = "x") -> int:
        return (await api.user.request("POST", "/auth/authorize-token", json={"token": token})).status

    assert await status() == 401, "without a plugin no token is taken"
    api.cluster.manager.services.hooks.plugins = [("careless", hook)]
    for life in (timedelta(0), -timedelta(minutes=1), MAX_TOKEN_LIFE + timedelta(minutes=1)):
        hook.life = life
        assert await status() == 401, life
    hook.life = timedelta(minutes=1)
    hook.token_id = ""
    assert await status() == 401
    hook.token_id = "one"
    assert [await status(), await status("y")] == [200, 401], "it is the id that counts"
    api.cluster.manager.services.hooks.plugins = [("other", hook)]
    assert await status() == 200, "ids are those of one plugin"
