"""What registries and references to artifacts may be."""

from __future__ import annotations

import pytest

from ai.backend.common.artifacts import RegistryType
from ai.backend.common.errors import InvalidInput
from ai.backend.manager.artifacts.registries import check_credentials, check_url
from ai.backend.manager.artifacts.service import split_reference


@pytest.mark.parametrize(
    ("ref", "parts"),
    [
        ("acme/tiny", ("acme/tiny", None)),
        ("acme/tiny@main", ("acme/tiny", "main")),
        ("@scope/tool", ("@scope/tool", None)),
        ("@scope/tool@1.0", ("@scope/tool", "1.0")),
        ("tiny@", ("tiny@", None)),
        ("", ("", None)),
    ],
)
def test_references(ref: str, parts: tuple[str, str | None]) -> None:
    assert split_reference(ref) == parts


def test_urls_lose_their_last_slash_and_carry_nothing_else() -> None:
    assert check_url(RegistryType.HUGGINGFACE, "https://hub.example:8443/models/") == "https://hub.example:8443/models"
    for url in ("hub.example", "file:///etc/passwd", "https://a b", "https://x/\n", "http://[::1", "http://h/#f"):
        with pytest.raises(InvalidInput, match="URL"):
            check_url(RegistryType.RESERVOIR, url)


def test_credentials_are_named_and_never_repeated() -> None:
    assert check_credentials(RegistryType.HUGGINGFACE, {"token": ""}) == {}
    with pytest.raises(InvalidInput) as refused:
        check_credentials(RegistryType.RESERVOIR, {"access_key": "AK\u00e9", "token": "hf_secret"})
    assert refused.value.data == {
        "credentials.secret_key": "required",
        "credentials.token": "unknown for reservoir",
        "credentials.access_key": "malformed",
    }
    assert "hf_secret" not in refused.value.message
