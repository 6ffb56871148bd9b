"""Contexts speak TLS 1.3 only, and accept the peers that they are made for and no others."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest

from ai.backend.infra.tls.certificates import (
    TlsIdentity,
    create_authority,
    create_request,
    create_server_identity,
    fingerprint_of,
    issue_client_certificate,
)
from ai.backend.infra.tls.contexts import pinned_client_context, server_context, unverified_client_context

SERVER, AUTHORITY = create_server_identity(), create_authority()


def client_of(authority: TlsIdentity, *, now: datetime | None = None) -> TlsIdentity:
    key, request = create_request("worker")
    return TlsIdentity(key, issue_client_certificate(authority, request, "worker", now=now))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both sides after a handshake in memory: the server's, the client's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    client_side = client.wrap_bio(to_client, to_server, server_hostname="route")
    for side in (client_side, server_side, client_side, server_side):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return server_side, client_side


def test_the_fingerprint_is_of_the_certificate_that_a_client_sees() -> None:
    _, client = handshake(server_context(SERVER), unverified_client_context())
    assert client.version() == "TLSv1.3"
    assert sha256(client.getpeercert(binary_form=True) or b"").digest() == fingerprint_of(SERVER.certificate)


def test_a_client_of_an_older_protocol_is_refused() -> None:
    old = unverified_client_context()
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(server_context(SERVER), old)


def test_both_sides_accept_each_other() -> None:
    client = client_of(AUTHORITY)
    server_side, _ = handshake(
        server_context(SERVER, [AUTHORITY.certificate]), pinned_client_context(SERVER.certificate, client)
    )
    assert server_side.getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(client.certificate)


@pytest.mark.parametrize("authorities", [[], [create_authority().certificate]])
def test_a_client_of_another_authority_is_refused(authorities: list[str]) -> None:
    with pytest.raises(ssl.SSLError):
        handshake(server_context(SERVER, authorities), pinned_client_context(SERVER.certificate, client_of(AUTHORITY)))


@pytest.mark.parametrize("shift", [timedelta(days=-2), timedelta(days=2)])
def test_a_certificate_outside_its_life_is_refused(shift: timedelta) -> None:
    client = pinned_client_context(SERVER.certificate, client_of(AUTHORITY, now=datetime.now(UTC) + shift))
    with pytest.raises(ssl.SSLError):
        handshake(server_context(SERVER, [AUTHORITY.certificate]), client)


def test_a_client_without_a_certificate_or_with_a_self_signed_one_is_refused() -> None:
    server = server_context(SERVER, [AUTHORITY.certificate])
    for client in (unverified_client_context(), pinned_client_context(SERVER.certificate, create_server_identity())):
        with pytest.raises(ssl.SSLError):
            handshake(server, client)


def test_another_server_is_refused_before_the_client_shows_its_certificate() -> None:
    client = pinned_client_context(SERVER.certificate, client_of(AUTHORITY))
    for other in (create_server_identity(), client_of(SERVER)):
        with pytest.raises(ssl.SSLError):
            handshake(server_context(other, [AUTHORITY.certificate]), client)
