"""Cookies that scripts of an app set at the console's host, which browsers send to all of its ports and subdomains."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest
import pytest_asyncio

from tests.component.web.conftest import Site


@pytest_asyncio.fixture
async def victim() -> AsyncIterator[aiohttp.ClientSession]:
    """A browser that has no cookie yet; its requests are those of pages of the console."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        yield http


async def token_of_attacker(site: Site) -> str:
    assert (await site.login())["authenticated"] is True
    (cookie,) = site.http.cookie_jar
    return cookie.value


async def is_signed_in(site: Site, http: aiohttp.ClientSession, headers: Mapping[str, str]) -> bool:
    async with http.post(f"{site.url}/server/login-check", headers=headers) as response:
        return bool((await response.json())["authenticated"])


@pytest.mark.parametrize("order", ["{own}; {tossed}", "{tossed}; {own}"])
async def test_a_cookie_that_comes_twice_is_nobody_s(site: Site, order: str) -> None:
    tossed = f"backendai={await token_of_attacker(site)}"
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as victim:
        await check_twice(site, victim, tossed, order)


async def check_twice(site: Site, victim: aiohttp.ClientSession, tossed: str, order: str) -> None:
    for own in ("backendai=none", tossed, "backendai=of-another-login"):
        headers = {"Origin": site.url, "Cookie": order.format(own=own, tossed=tossed)}
        assert not await is_signed_in(site, victim, headers)
        async with victim.get(f"{site.url}/func/auth/role", headers=headers) as response:
            assert response.status == 401
        async with victim.post(f"{site.url}/server/login", headers=headers, json={}) as response:
            assert response.status == 400
            assert "remove the site's cookies" in await response.text()
    assert await is_signed_in(site, victim, {"Origin": site.url, "Cookie": tossed}), "what the tests would not show"


async def test_who_has_seen_the_console_has_a_cookie_that_scripts_cannot_replace(
    site: Site, victim: aiohttp.ClientSession
) -> None:
    assert not await is_signed_in(site, victim, {"Origin": site.url})
    placeholders = {cookie.key: cookie for cookie in victim.cookie_jar}
    assert set(placeholders) == {"backendai", "backendai-ticket"}
    assert {(cookie["httponly"], cookie["path"]) for cookie in placeholders.values()} == {(True, "/")}
    assert [cookie["samesite"] for cookie in placeholders.values()].count("Lax") == 1
    async with victim.post(f"{site.url}/server/logout", headers={"Origin": site.url}) as response:
        assert response.status == 200
    assert {cookie.value for cookie in victim.cookie_jar if cookie.key == "backendai"} == {"none"}


async def test_a_program_gets_no_placeholder(site: Site, victim: aiohttp.ClientSession) -> None:
    assert not await is_signed_in(site, victim, {})
    assert not list(victim.cookie_jar)
