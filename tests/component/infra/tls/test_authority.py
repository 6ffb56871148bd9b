"""Certificates of `mgr pki`, with which real servers and clients speak, and which are replaced while they do."""

from __future__ import annotations

import asyncio
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ai.backend.common.errors import Conflict, InvalidInput, NotFound
from ai.backend.infra.http.server import tls_of
from ai.backend.infra.telemetry import Metrics
from ai.backend.infra.tls.authority import Authority, expiry_of
from ai.backend.infra.tls.reloading import ReloadedCertificate
from ai.backend.manager.main import main

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def _authority(folder: Path, name: str = "Test") -> Authority:
    authority = Authority(folder / "pki")
    authority.create(name, lifetime=365 * DAY, now=NOW)
    return authority


async def _serial(port: int, trusted: Path, host: str = "127.0.0.1") -> str:
    """Returns the serial number of the certificate that a server presents to a client of that host name."""
    context = ssl.create_default_context(cafile=trusted)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    return str(certificate["serialNumber"])


async def _serve(context: ssl.SSLContext) -> tuple[asyncio.Server, int]:
    async def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(end, "127.0.0.1", 0, ssl=context)
    return server, server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "manager.example.com"])
async def test_a_running_server_takes_a_new_certificate_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr("ai.backend.infra.tls.reloading._CHECK_S", 0.0)
    authority, hosts = _authority(tmp_path), ["127.0.0.1", "manager.example.com"]
    certificate, key = authority.issue("manager", hosts, lifetime=30 * DAY, now=NOW, folder=tmp_path)
    assert key.stat().st_mode & 0o777 == 0o600
    metrics = Metrics("test-tls")

    def days_left() -> float:
        (line,) = [line for line in metrics.exposition().decode().splitlines() if line.startswith("backendai_test_tls")]
        return round((float(line.split()[1]) - NOW.timestamp()) / DAY.total_seconds(), 3)

    server, port = await _serve(tls_of(certificate, key, metrics=metrics))
    async with server:
        assert days_left() == 30
        first = await _serial(port, authority.trusted_file, host)
        assert await _serial(port, authority.trusted_file, host) == first
        authority.issue("manager", hosts, lifetime=60 * DAY, now=NOW, folder=tmp_path)
        second = await _serial(port, authority.trusted_file, host)
        assert second != first
        assert days_left() == 60
        authority.create("Test", lifetime=365 * DAY, now=NOW, replace=True)
        assert await _serial(port, authority.trusted_file, host) == second  # the earlier authority is trusted still
        authority.issue("manager", hosts, lifetime=30 * DAY, now=NOW, folder=tmp_path)
        assert await _serial(port, authority.trusted_file, host) not in (first, second)


async def test_a_broken_file_leaves_the_certificate_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ai.backend.infra.tls.reloading._CHECK_S", 0.0)
    authority = _authority(tmp_path)
    certificate, key = authority.issue("manager", ["127.0.0.1"], lifetime=30 * DAY, now=NOW, folder=tmp_path)
    server, port = await _serve(ReloadedCertificate(certificate, key).context)
    async with server:
        first = await _serial(port, authority.trusted_file)
        good = certificate.read_bytes()
        certificate.write_text("half of it")
        assert await _serial(port, authority.trusted_file) == first
        assert "The one of before is used" in caplog.text
        key.unlink()
        assert await _serial(port, authority.trusted_file) == first
        certificate.write_bytes(good)
        authority.issue("manager", ["127.0.0.1"], lifetime=30 * DAY, now=NOW, folder=tmp_path)
        assert await _serial(port, authority.trusted_file) != first


async def test_other_hosts_and_other_authorities_are_not_trusted(tmp_path: Path) -> None:
    authority, other = _authority(tmp_path), _authority(tmp_path / "other")
    certificate, key = authority.issue("manager", ["127.0.0.1"], lifetime=30 * DAY, now=NOW, folder=tmp_path)
    server, port = await _serve(tls_of(certificate, key))
    async with server:
        for trusted, host in ((other.trusted_file, "127.0.0.1"), (authority.trusted_file, "elsewhere.example.com")):
            with pytest.raises(ssl.SSLCertVerificationError):
                await _serial(port, trusted, host)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="pki init"):
        Authority(tmp_path / "none").issue("a", ["b"], lifetime=DAY, now=NOW, folder=tmp_path)
    authority = _authority(tmp_path)
    with pytest.raises(Conflict, match="--replace"):
        authority.create("Test", lifetime=DAY, now=NOW)
    with pytest.raises(InvalidInput, match="expires on"):
        authority.issue("a", ["b"], lifetime=366 * DAY, now=NOW, folder=tmp_path)
    for host in ("a b", "-a", "a..b", "x" * 300, "a/b", ""):
        with pytest.raises(InvalidInput, match="neither a host name nor an address"):
            authority.issue("a", [host], lifetime=DAY, now=NOW, folder=tmp_path)
    with pytest.raises(InvalidInput):
        authority.issue("../a", ["b"], lifetime=DAY, now=NOW, folder=tmp_path)


def test_the_commands(tmp_path: Path) -> None:
    (tmp_path / "manager.toml").write_text(f'data-dir = "{tmp_path}"\n')

    def mgr(*words: str) -> Result:
        return CliRunner().invoke(main, ["--config", str(tmp_path / "manager.toml"), "pki", *words])

    assert "authorities.pem" in mgr("init").output
    issued = mgr("issue", "manager", "--host", "127.0.0.1", "--days", "30", "-o", str(tmp_path))
    assert f"ssl-cert = '{tmp_path}/manager.pem'" in issued.output
    assert mgr("expiry", str(tmp_path / "manager.pem")).exit_code == 0
    late = mgr("expiry", str(tmp_path / "manager.pem"), "--within", "31")
    assert (late.exit_code, "one expires within 31 days" in late.output) == (1, True)
    assert abs(expiry_of(tmp_path / "manager.pem") - datetime.now(UTC) - 30 * DAY) < timedelta(minutes=5)
    assert os.stat(tmp_path / "pki/authority-key.pem").st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["authority", "authorities", "authority-key"])
def test_a_certificate_takes_the_place_of_no_file_of_the_authority(tmp_path: Path, name: str) -> None:
    authority = _authority(tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "pki").iterdir()}
    with pytest.raises(InvalidInput, match="another folder"):
        authority.issue(name, ["host"], lifetime=DAY, now=NOW, folder=tmp_path / "other/../pki")
    assert {path.name: path.read_bytes() for path in (tmp_path / "pki").iterdir()} == before


def test_an_authority_whose_replacement_was_interrupted_issues_nothing(tmp_path: Path) -> None:
    """Its certificates would be signed by a key that no client trusts."""
    authority, other = _authority(tmp_path), Authority(tmp_path / "other")
    other.create("Other", lifetime=365 * DAY, now=NOW)
    (tmp_path / "pki/authority-key.pem").write_bytes((tmp_path / "other/authority-key.pem").read_bytes())
    with pytest.raises(Conflict, match="do not belong together"):
        authority.issue("manager", ["host"], lifetime=DAY, now=NOW, folder=tmp_path)
    authority.create("Again", lifetime=365 * DAY, now=NOW, replace=True)
    authority.issue("manager", ["host"], lifetime=DAY, now=NOW, folder=tmp_path)
