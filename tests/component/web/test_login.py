"""Sign-in and sign-out at the web server."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7
from yarl import URL

from ai.backend.web.composition import login_store_of
from ai.backend.web.config.settings import SessionSettings
from ai.backend.web.login import recent
from ai.backend.web.login.model import login_id_of
from ai.backend.web.login.recent import RECENT_S
from tests.component.web.conftest import ACCESS_KEY, PASSWORD, SECRET_KEY, Site, running_site


async def check(site: Site, **options: object) -> dict[str, object]:
    async with site.http.post(f"{site.url}/server/login-check", **options) as response:  # type: ignore[arg-type]  # aiohttp's own
        answer: dict[str, object] = await response.json()
        return answer


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("logins.db*"))


async def test_a_login_lasts_until_the_logout(site: Site) -> None:
    assert (await check(site))["authenticated"] is False
    answer = await site.login()
    assert answer == {
        "status": 200,
        "authenticated": True,
        "data": {"access_key": ACCESS_KEY, "role": "user", "status": "active"},
    }
    checked = await check(site)
    assert checked["authenticated"] is True
    (cookie,) = site.http.cookie_jar
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
    assert str(checked["session_id"]) not in cookie.value
    assert (await site.login())["status"] == 400
    async with site.http.get(f"{site.url}/func/auth/role") as response:
        assert response.status == 200
    stale = {cookie.key: cookie.value}
    async with site.http.post(f"{site.url}/server/logout") as response:
        assert response.status == 200
    async with aiohttp.ClientSession(cookies=stale) as thief, thief.get(f"{site.url}/func/auth/role") as response:
        assert response.status == 401


async def test_a_wrong_password_is_an_answer_with_details(site: Site) -> None:
    answer = await site.login("wrong")
    assert (answer["status"], answer["authenticated"]) == (200, False)
    assert answer["data"]["details"] == "The address or the password is wrong."
    assert not list(site.http.cookie_jar)
    assert site.manager.sign_ins[-1]["address"] == "127.0.0.1"
    async with site.http.post(f"{site.url}/server/login", json={"username": "", "password": ""}) as response:
        assert response.status == 400
        assert response.content_type == "application/problem+json"
    async with site.http.post(f"{site.url}/server/login", data=b"\xff{") as response:
        assert response.status == 400


async def test_a_name_is_refused_after_failures_also_of_the_same_moment(tmp_path: Path) -> None:
    async with running_site(tmp_path, session={"login-allowed-fail-count": 3}) as site:
        statuses = [answer["status"] for answer in await asyncio.gather(*[site.login("wrong") for _ in range(12)])]
        assert sorted(statuses) == [200] * 3 + [429] * 9
        assert len(site.manager.sign_ins) == 3
        assert (await site.login())["status"] == 429  # the right password helps no longer


async def test_a_success_forgets_failures_and_an_absent_manager_adds_none(tmp_path: Path) -> None:
    async with running_site(tmp_path, session={"login-allowed-fail-count": 2}) as site:
        for _ in range(3):
            assert (await site.login("wrong"))["status"] == 200
            assert (await site.login())["status"] == 200
            site.http.cookie_jar.clear()
    away = {"endpoint": "http://127.0.0.1:9"}
    async with running_site(
        tmp_path / "b", session={"login-allowed-fail-count": 2, "file": str(tmp_path / "b.db")}, api=away
    ) as site:
        for _ in range(5):
            answer = await site.login()
            assert (answer["status"], answer["authenticated"]) == (502, False)


async def test_the_addresses_of_an_ipv6_network_count_together(tmp_path: Path) -> None:
    """Whoever has one such address has 2^64 of them."""
    service = {"trusted-proxies": ["127.0.0.1"]}
    async with running_site(tmp_path, session={"address-allowed-fail-count": 3}, service=service) as site:
        for number in range(6):  # one guess for each name, so that no name is refused
            body = {"username": f"{number}@example.com", "password": "guess"}
            headers = {"X-Forwarded-For": f"2001:db8:0:1::{number:x}"}
            async with site.http.post(f"{site.url}/server/login", json=body, headers=headers) as response:
                assert response.status == (200 if number < 3 else 429), number
        other = {"username": "other@example.com", "password": "guess"}
        headers = {"X-Forwarded-For": "2001:db8:0:2::1"}
        async with site.http.post(f"{site.url}/server/login", json=other, headers=headers) as response:
            assert response.status == 200, "another network"


async def test_a_deeply_nested_body_is_refused_and_leaves_no_traceback(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("login", "logout", "update-password-no-auth"):
        body = b'{"username":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
        async with site.http.post(f"{site.url}/server/{path}", data=body) as response:
            assert response.status == 400
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_manager_that_is_away_is_no_failure_of_a_sign_in_elsewhere(tmp_path: Path) -> None:
    away = {"endpoint": "http://127.0.0.1:9"}
    async with running_site(tmp_path, session={"address-allowed-fail-count": 2}, api=away) as site:
        for _ in range(5):
            headers = {"Cookie": "backendai-ticket=ticket|"}
            async with site.http.get(f"{site.url}/server/sso/x/callback", headers=headers) as response:
                assert response.status == 503


async def test_all_logins_of_a_user_end_together(site: Site) -> None:
    await site.login()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as other:
        second = Site(site.url, site.manager, other, site.server)
        await second.login()
        for path in ("auth/update-password", "v4/auth/update-password", "auth/update%2Dpassword"):
            async with site.http.post(URL(f"{site.url}/func/{path}", encoded=True), json={}) as response:
                assert response.status == 200
            assert (await check(second))["authenticated"] is False, path
            assert (await check(site))["authenticated"] is True
            await second.login()
        async with site.http.post(f"{site.url}/server/logout", json={"everywhere": True}) as response:
            assert response.status == 200
        assert (await check(second))["authenticated"] is False


async def test_a_sign_out_at_another_server_counts_within_a_second(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site, running_site(tmp_path) as other:
        await site.login()
        (cookie,) = site.http.cookie_jar
        cookies = {cookie.key: cookie.value}
        assert (await check(other, cookies=cookies))["authenticated"] is True
        async with site.http.post(f"{site.url}/server/logout") as response:
            assert response.status == 200
        assert (await check(site, cookies=cookies))["authenticated"] is False, "here it counts at once"
        await asyncio.sleep(RECENT_S)  # the other server may use what it has read for so long
        assert (await check(other, cookies=cookies))["authenticated"] is False


async def test_logins_survive_a_restart_and_their_file_has_no_keys(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await site.login()
        (cookie,) = site.http.cookie_jar
        cookies = {cookie.key: cookie.value}
    stored = bytes_of(tmp_path)
    for secret in (SECRET_KEY, ACCESS_KEY, cookie.value, PASSWORD):
        assert secret.encode() not in stored
    assert b"user@example.com" in stored
    async with running_site(tmp_path) as site:
        assert (await check(site, cookies=cookies))["authenticated"] is True
        with sqlite3.connect(tmp_path / "logins.db") as database:
            database.execute("UPDATE login_sessions SET sealed = x'00'")
        await asyncio.sleep(RECENT_S)  # until it is read again
        assert (await check(site, cookies=cookies))["authenticated"] is False
    async with running_site(tmp_path, session={"flush-on-startup": True}) as site:
        assert (await check(site, cookies=cookies))["authenticated"] is False


async def test_a_login_is_extended(site: Site) -> None:
    async with site.http.post(f"{site.url}/server/extend-login-session") as response:
        assert response.status == 401
    await site.login()
    async with site.http.post(f"{site.url}/server/extend-login-session") as response:
        assert response.status == 201
        assert (await response.json())["expires"]
        assert "Max-Age=604800" in response.headers["Set-Cookie"]


async def test_the_console_may_encrypt_the_login(site: Site) -> None:
    iv = base64.b64encode(os.urandom(12))
    key = (base64.b64encode(site.url.encode()) + iv + iv)[:32]
    padder = PKCS7(128).padder()
    text = json.dumps({"username": "user@example.com", "password": PASSWORD}).encode()
    encryptor = Cipher(algorithms.AES(key), modes.CBC(iv)).encryptor()
    encrypted = encryptor.update(padder.update(text) + padder.finalize()) + encryptor.finalize()
    body, headers = iv + b":" + base64.b64encode(encrypted), {"X-BackendAI-Encoded": "true"}
    for malformed in (b"", b":", iv + b":", iv + b":AAAA", iv + b":" + base64.b64encode(bytes(32)), body[:-4]):
        async with site.http.post(f"{site.url}/server/login", data=malformed, headers=headers) as response:
            assert response.status == 400, malformed
    async with site.http.post(f"{site.url}/server/login", data=body, headers=headers) as response:
        assert (await response.json())["authenticated"] is True


async def test_login_sessions_are_listed_and_ended_one_by_one(site: Site) -> None:
    await site.login(headers={"User-Agent": "first"})
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        other = Site(site.url, site.manager, http, site.server)
        await other.login(headers={"User-Agent": "second" * 100})
        async with site.http.get(f"{site.url}/server/login-sessions") as response:
            items = (await response.json())["items"]
        assert [(item["client"][:6], item["is_current"]) for item in items] == [("second", False), ("first", True)]
        assert items[0]["address"] == "127.0.0.1"
        assert len(items[0]["client"]) == 256
        for session_id, status in ((items[0]["session_id"], 200), (items[0]["session_id"], 404), ("x", 404)):
            async with site.http.delete(f"{site.url}/server/login-sessions/{session_id}") as response:
                assert response.status == status
        assert (await check(other))["authenticated"] is False
        assert (await check(site))["authenticated"] is True
        async with http.get(f"{site.url}/server/login-sessions") as response:
            assert response.status == 401
        path = f"{site.url}/server/login-sessions/{items[1]['session_id']}"
        async with site.http.delete(path, headers={"Origin": "https://evil.example"}) as response:
            assert response.status == 403
        async with site.http.delete(path) as response:
            assert response.status == 200
    assert (await check(site))["authenticated"] is False


async def test_a_missing_one_time_password_is_no_failure(tmp_path: Path) -> None:
    async with running_site(tmp_path, session={"login-allowed-fail-count": 2}) as site:
        site.manager.otp = "123456"
        for _ in range(4):
            answer = await site.login()
            assert answer["data"]["details"] == "OTP not provided"
        body = {"username": "user@example.com", "password": PASSWORD, "otp": "123456"}
        async with site.http.post(f"{site.url}/server/login", json=body) as response:
            assert (await response.json())["authenticated"] is True
        site.http.cookie_jar.clear()
        for otp, status in (("1", 200), ("2", 200), ("3", 429)):
            async with site.http.post(f"{site.url}/server/login", json={**body, "otp": otp}) as response:
                assert response.status == status


async def test_passwords_are_not_guessed_by_changing_them(tmp_path: Path) -> None:
    """Changing a password that must be changed says whether the present one is right, as a sign-in does."""

    async def change(site: Site, username: str, password: str, new: str = "another horse") -> int:
        body = {"username": username, "current_password": password, "new_password": new}
        async with site.http.post(f"{site.url}/server/update-password-no-auth", json=body) as response:
            return response.status

    limits = {"login-allowed-fail-count": 3, "address-allowed-fail-count": 8}
    async with running_site(tmp_path, session=limits) as site:
        for _ in range(5):
            assert await change(site, "user@example.com", PASSWORD, "short") == 400, "the policy refuses, which is free"
        assert [await change(site, "user@example.com", "wrong") for _ in range(5)] == [401] * 3 + [429] * 2
        assert (await site.login())["status"] == 429, "a sign-in has the same count"
        asked = len(site.manager.sign_ins)
        assert 429 in [await change(site, f"user-{n}@example.com", "spring") for n in range(8)], (
            "nor one for many users"
        )
        assert len(site.manager.sign_ins) - asked < 8


async def test_a_session_that_nobody_uses_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "RECENT_S", 0.0)  # the times are changed behind the server's back
    async with running_site(tmp_path, session={"idle-timeout": 600}) as site:
        await site.login()
        (cookie,) = site.http.cookie_jar

        def used(seconds_ago: float) -> None:
            moment = (datetime.now(UTC) - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%d %H:%M:%S.%f")
            with sqlite3.connect(tmp_path / "logins.db") as database:
                database.execute("UPDATE login_sessions SET created_at = ?", [moment])
                database.execute("UPDATE login_session_uses SET used_at = ?", [moment])

        async def ask(**headers: str) -> int:
            async with site.http.get(f"{site.url}/func/auth/role", headers=headers) as response:
                return response.status

        unattended = {"X-BackendAI-Unattended": "1"}
        used(500)
        assert await ask(**unattended) == 200
        used(500)
        assert await ask() == 200, "a use begins the time anew"
        with sqlite3.connect(tmp_path / "logins.db") as database:
            assert database.execute("SELECT count(*) FROM login_session_uses").fetchone() == (1,)
            database.execute("UPDATE login_sessions SET created_at = '2020-01-01 00:00:00.000000'")
        assert await ask() == 200
        used(590)
        assert await ask(**unattended) == 200, "a page that fetches by itself does not"
        used(601)
        assert await site.server.logins.active_ids([login_id_of(cookie.value)]) == set(), "its streams end too"
        assert await ask() == 401
        used(0)
        assert await ask() == 401, "it does not come back"


async def test_superadmins_end_login_sessions_of_others(site: Site) -> None:
    await site.login()
    path = f"{site.url}/server/users/User@example.com/login-sessions"
    async with site.http.get(path) as response:
        assert response.status == 403
    site.manager.role = "superadmin"  # since the sign-in
    async with site.http.get(path) as response:
        (item,) = (await response.json())["items"]
    site.manager.role = "user"
    async with site.http.delete(f"{path}/{item['session_id']}") as response:
        assert response.status == 403, "the role of now counts"
    site.manager.role = "superadmin"
    for session_id, status in (("0" * 32, 404), (item["session_id"], 200)):
        async with site.http.delete(f"{path}/{session_id}") as response:
            assert response.status == status
    assert (await check(site))["authenticated"] is False
    async with site.http.get(path) as response:
        assert response.status == 401


async def test_the_folder_of_the_logins_is_made(tmp_path: Path) -> None:
    """The server makes the folder if no package has, as in a container whose volume is empty."""
    settings = SessionSettings.model_validate({"file": str(tmp_path / "state/web/logins.db")})
    login_store_of(settings)
    assert (tmp_path / "state/web").stat().st_mode & 0o777 == 0o700
