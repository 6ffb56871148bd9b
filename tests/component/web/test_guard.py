"""Hostile pages, names and addresses change nothing (OWASP ASVS 5.0, chapters 3.3 to 3.5)."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from tests.component.web.conftest import Site, running_site
from tests.support.certificates import self_signed

PAGE = "<html><script src='static/a.js'></script><script>let a = '&amp;' < 1</script>console</html>"
SCRIPT_HASH = base64.b64encode(hashlib.sha256(b"let a = '&amp;' < 1").digest()).decode()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_pages_of_other_sites_change_nothing(site: Site, headers: dict[str, str]) -> None:
    assert (await site.login(headers=headers))["status"] == 403
    await site.login()
    async with site.http.post(f"{site.url}/func/sessions", headers=headers) as response:
        assert response.status == 403
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await site.http.ws_connect(f"{site.url}/func/stream/echo", headers=headers)
    assert refusal.value.status == 403
    async with site.http.post(f"{site.url}/func/sessions", headers={"Origin": site.url}) as response:
        assert response.status == 200
    assert len(site.manager.requests) == 1


async def test_every_response_has_the_security_headers(site: Site) -> None:
    for path in ("/", "/func/x", "/server/login-check", "/livez", "/config.toml"):
        async with site.http.get(site.url + path) as response:
            headers = response.headers
            assert headers["X-Content-Type-Options"] == "nosniff", path
            assert headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert headers["X-Frame-Options"] == "DENY"
            assert "Strict-Transport-Security" not in headers


async def test_behind_tls_the_cookie_is_bound_to_the_host(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    service = {"ssl-enabled": True, "ssl-cert": str(certificate), "ssl-privkey": str(key)}
    async with running_site(tmp_path, service=service) as site:
        body = {"username": "user@example.com", "password": "correct horse battery"}
        async with site.http.post(f"{site.url}/server/login", json=body, ssl=False) as response:
            cookie = response.headers["Set-Cookie"]
            assert cookie.startswith("__Host-backendai=")
            assert "Secure" in cookie
            assert "Domain" not in cookie
            assert response.headers["Strict-Transport-Security"] == "max-age=31536000"
    wide = running_site(tmp_path, service=service, security={"hsts-subdomains": True})
    async with wide as site, site.http.get(f"{site.url}/", ssl=False) as response:
        assert response.headers["Strict-Transport-Security"].endswith("; includeSubDomains")


async def test_a_malformed_host_is_refused(site: Site) -> None:
    for host in ('evil"\nx', "a b", "<script>", "user@host"):
        if "\n" in host:
            continue
        async with site.http.get(f"{site.url}/config.toml", headers={"Host": host}) as response:
            assert response.status == 400, host


async def test_files_come_from_the_folder_and_from_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "console"
    (folder / "static").mkdir(parents=True)
    (folder / "index.html").write_text(PAGE)
    (folder / "static" / "main.0123abcd.js").write_text("1")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "static" / "index.html").symlink_to(tmp_path / "secret.txt")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("secret")
    (folder / ".env.local").write_text("secret")
    (folder / ".well-known").mkdir()
    (folder / ".well-known" / "change-password.txt").write_text("public")
    async with running_site(tmp_path, service={"static-path": str(folder)}) as site:
        for path in ("/", "/index.html", "/session/abc"):
            async with site.http.get(site.url + path) as response:
                assert await response.text() == PAGE, path
                assert response.headers["Cache-Control"] == "no-store"
                policy = response.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'self'")
                assert policy.endswith(f"; script-src 'self' 'sha256-{SCRIPT_HASH}'")
        async with site.http.get(f"{site.url}/static/main.0123abcd.js") as response:
            assert response.content_type in ("text/javascript", "application/javascript")
            assert "immutable" in response.headers["Cache-Control"]
        for path in (
            "/link.txt",
            "/..%2fsecret.txt",
            "/%2e%2e/secret.txt",
            "/static/../../secret.txt",
            "/no.js",
            "/a%00.txt",
            "/.env.local",
            "/static/../.env.local",
        ):
            async with site.http.get(URL(site.url + path, encoded=True)) as response:
                assert "secret" not in await response.text(), path
                assert response.status == 404, path
        for path in ("/static", "/static/", "/.git/config", "/.git"):
            async with site.http.get(URL(site.url + path, encoded=True)) as response:
                assert "secret" not in await response.text(), path
        async with site.http.get(f"{site.url}/.well-known/change-password.txt") as response:
            assert await response.text() == "public"


async def test_the_configuration_names_the_address_of_the_browser(site: Site) -> None:
    async with site.http.get(f"{site.url}/config.toml", headers={"Host": "console.example:8443"}) as response:
        assert 'apiEndpoint = "http://console.example:8443"' in await response.text()
        assert response.headers["Cache-Control"] == "no-store"
