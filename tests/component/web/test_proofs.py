"""Proofs of who asks at the web server: the browser keeps one that no page sees, and requests carry it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from http.cookies import Morsel
from pathlib import Path

from tests.component.web.conftest import PASSWORD, Site, running_site

PROOF = "head.payload.signature"


async def proof_cookie(site: Site) -> Morsel[str] | None:
    return next((cookie for cookie in site.http.cookie_jar if cookie.key.endswith("-proof")), None)


async def prove(site: Site, **fields: str) -> tuple[int, str]:
    async with site.http.post(f"{site.url}/server/proof", json=fields) as response:
        return response.status, await response.text()


async def sent_headers(site: Site, **headers: str) -> dict[str, str]:
    async with site.http.post(f"{site.url}/func/anything", headers=headers) as response:
        sent: dict[str, str] = (await response.json())["headers"]
        return sent


async def test_a_proof_lies_in_a_cookie_and_goes_to_the_manager_alone(site: Site) -> None:
    assert (await prove(site, password=PASSWORD))[0] == 401, "without a login"
    await site.login()
    assert "X-BackendAI-Proof" not in await sent_headers(site, **{"X-BackendAI-Proof": "forged"})
    status, text = await prove(site, password=PASSWORD)
    assert (status, PROOF in text) == (200, False)
    cookie = await proof_cookie(site)
    assert cookie is not None
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
    assert 500 < int(cookie["max-age"]) <= 600
    assert (await sent_headers(site))["X-BackendAI-Proof"] == PROOF
    async with site.http.delete(f"{site.url}/server/proof") as response:
        assert response.status == 200
    assert "X-BackendAI-Proof" not in await sent_headers(site)


async def test_a_logout_takes_it_away(site: Site) -> None:
    await site.login()
    await prove(site, otp="123456")
    async with site.http.post(f"{site.url}/server/logout"):
        assert await proof_cookie(site) is None


async def test_what_is_no_proof_is_refused_and_counted(tmp_path: Path) -> None:
    async with running_site(tmp_path, session={"login_allowed_fail_count": 3}) as site:
        await site.login()
        for fields in ({}, {"password": ""}, {"password": PASSWORD, "otp": "123456"}, {"password": "x" * 300}):
            assert (await prove(site, **fields))[0] == 400, fields
        statuses = [(await prove(site, password=f"wrong {n}"))[0] for n in range(5)]
        assert statuses == [401, 401, 401, 429, 429]
        assert await proof_cookie(site) is None
        assert (await prove(site, password=PASSWORD))[0] == 429


async def test_pages_of_other_sites_ask_for_none(site: Site) -> None:
    await site.login()
    headers = {"Origin": "https://evil.example"}
    async with site.http.post(f"{site.url}/server/proof", json={"password": PASSWORD}, headers=headers) as response:
        assert response.status == 403


async def test_an_answer_that_is_no_proof_sets_no_cookie(site: Site) -> None:
    await site.login()
    for answer in ({}, {"proof": "x"}, {"proof": "x" * 4_000, "expires_at": _soon()}, {"proof": 1, "expires_at": "x"}):
        site.manager.proof = answer
        assert (await prove(site, password=PASSWORD))[0] == 503, answer
        assert await proof_cookie(site) is None


def _soon() -> str:
    return (datetime.now(UTC) + timedelta(minutes=10)).isoformat()
