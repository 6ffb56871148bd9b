"""Secrets are opened with their key, in their place, and unchanged; or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ai.backend.common.errors import InternalError, InvalidInput
from ai.backend.manager.adapters.db.sealing import (
    Sealer,
    SealingKey,
    add_key,
    keep_first_key,
    load_or_make_keys,
    new_key,
    read_keys,
)

OLD, NEW = SealingKey(b"o" * 32), SealingKey(b"n" * 32)
PLACE = "keypairs.secret_key:AKIA"


def test_what_was_sealed_is_opened() -> None:
    sealer = Sealer([OLD])
    for secret in ("", "s", "ü" * 500, "hs1:not:really"):
        sealed = sealer.seal(secret, PLACE)
        assert sealed != sealer.seal(secret, PLACE), "each has a nonce of its own"
        assert sealer.open(sealed, PLACE) == secret
        assert len(secret) < 8 or secret not in sealed
    assert OLD.secret.hex() not in repr(sealer) + repr(OLD)


def test_every_change_is_noticed() -> None:
    sealer = Sealer([OLD])
    sealed = sealer.seal("secret", PLACE)
    head, _, text = sealed.rpartition(":")
    for at in range(len(text)):
        other = "A" if text[at] != "A" else "B"
        with pytest.raises(InternalError):
            sealer.open(f"{head}:{text[:at]}{other}{text[at + 1 :]}", PLACE)
    for damaged in (f"{head}:AAAA", f"{head}:?", sealed[:-4]):
        with pytest.raises(InternalError):
            sealer.open(damaged, PLACE)
    with pytest.raises(InternalError):
        sealer.open(sealed, "keypairs.secret_key:OTHER")


def test_keys_change() -> None:
    sealed = Sealer([OLD]).seal("secret", PLACE)
    both = Sealer([NEW, OLD])
    assert both.open(sealed, PLACE) == "secret"
    assert not both.is_current(sealed)
    assert both.is_current(both.seal("secret", PLACE))
    only_new = Sealer([NEW])
    assert only_new.missing(sealed) == OLD.id
    with pytest.raises(InternalError, match=OLD.id):
        only_new.open(sealed, PLACE)
    asked: list[int] = []

    def reload() -> list[SealingKey]:
        asked.append(1)
        return [OLD]

    late = Sealer([NEW], reload=reload)
    assert late.open(sealed, PLACE) == "secret", "another manager had the key sooner"
    unknown = Sealer([new_key()]).seal("x", PLACE)
    for _ in range(3):
        with pytest.raises(InternalError):
            late.open(unknown, PLACE)
    assert len(asked) == 2, "a key that is nowhere is looked for once"


def test_without_a_key_and_from_before_there_was_one() -> None:
    assert Sealer().seal("secret", PLACE) == "secret"
    assert Sealer([OLD]).open("secret", PLACE) == "secret"
    assert Sealer([OLD]).missing("a:b:c") is None
    assert not Sealer([OLD]).is_current("secret")


def test_the_key_file(tmp_path: Path) -> None:
    path = tmp_path / "made" / "secrets.key"
    [first] = load_or_make_keys(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_make_keys(path) == [first]
    second = add_key(path)
    assert read_keys(path) == [second, first]
    keep_first_key(path)
    assert read_keys(path) == [second]
    assert [p.name for p in path.parent.iterdir()] == ["secrets.key"]
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        read_keys(path)
    path.chmod(0o600)
    for text in ("", "# nothing", "abc", "zz" * 32, "00" * 31):
        path.write_text(text)
        with pytest.raises(InvalidInput):
            read_keys(path)
