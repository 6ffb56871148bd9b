"""Tokens expire, and are of one kind."""

from __future__ import annotations

import pytest

from ai.backend.common.errors import AuthenticationFailed
from ai.backend.storage.model.claims import ArchiveClaims, DownloadClaims, UploadClaims
from ai.backend.storage.services.tokens import Tokens

CLAIMS = UploadClaims(volume="v", vfid="f", relpath="p", size=3, session="s")


def test_a_token_tells_what_it_was_made_of_until_it_expires() -> None:
    now = [1000.0]
    tokens = Tokens("x" * 32, 60.0, clock=lambda: now[0])
    token = tokens.issue(CLAIMS)
    assert tokens.read(token, UploadClaims) == CLAIMS
    archive = ArchiveClaims(volume="v", virtual_folder_id="f", files=("a", "b"))
    assert tokens.read(tokens.issue(archive), ArchiveClaims) == archive
    now[0] = 1060.0
    assert tokens.read(token, UploadClaims) == CLAIMS
    now[0] = 1061.0
    with pytest.raises(AuthenticationFailed, match="expired"):
        tokens.read(token, UploadClaims)


def test_a_token_of_another_secret_or_kind_is_refused() -> None:
    tokens = Tokens("x" * 32, 60.0)
    with pytest.raises(AuthenticationFailed):
        tokens.read(Tokens("y" * 32, 60.0).issue(CLAIMS), UploadClaims)
    with pytest.raises(AuthenticationFailed, match="another operation"):
        tokens.read(tokens.issue(CLAIMS), DownloadClaims)
