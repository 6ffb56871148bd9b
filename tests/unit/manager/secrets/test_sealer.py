"""A sealed secret opens only unchanged, with its key and in its place."""

from __future__ import annotations

import base64
import hmac
import shutil
import stat
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

from ai.backend.common.errors import InternalError, InvalidInput
from ai.backend.manager.secrets.sealer import (
    Sealer,
    SealingKey,
    add_key,
    keep_first_key,
    load_or_make_keys,
    move_to_front,
    new_key,
    read_keys,
    stamp_of,
)

OLD, NEW = SealingKey(b"o" * 32), SealingKey(b"n" * 32)
PLACE = "keypairs.secret_key:AKIA"


def test_what_was_sealed_is_opened() -> None:
    sealer = Sealer([OLD])
    for secret in ("", "s", "ü" * 500, "gcm1:not:really"):
        sealed = sealer.seal(secret, PLACE)
        assert sealed != sealer.seal(secret, PLACE), "each has a nonce of its own"
        assert sealer.open(sealed, PLACE) == secret
        assert len(secret) < 8 or secret not in sealed
    assert OLD.secret.hex() not in repr(sealer) + repr(OLD)


def _changed(sealed: str, at: int, bit: int) -> str:
    """Returns a sealed text with one bit of nonce, ciphertext or tag inverted."""
    head, _, text = sealed.rpartition(":")
    data = bytearray(base64.b64decode(text))
    data[at] ^= 1 << bit
    return f"{head}:{base64.b64encode(data).decode()}"


def test_every_change_is_noticed() -> None:
    sealer = Sealer([OLD])
    sealed = sealer.seal("secret", PLACE)
    head, _, text = sealed.rpartition(":")
    for at in range(len(base64.b64decode(text))):
        for bit in range(8):
            with pytest.raises(InternalError, match="damaged"):
                sealer.open(_changed(sealed, at, bit), PLACE)
    for damaged in (f"{head}:AAAA", f"{head}:?", f"{head}:{'A' * 16}", sealed[:-4]):
        with pytest.raises(InternalError, match="damaged"):
            sealer.open(damaged, PLACE)


def test_a_secret_opens_in_its_place_only() -> None:
    """A secret that was copied to another row, column or table does not open."""
    sealer = Sealer([OLD])
    sealed = sealer.seal("secret", PLACE)
    for place in ("keypairs.secret_key:OTHER", "artifact_registries.credentials:AKIA", "", PLACE + "x"):
        with pytest.raises(InternalError, match="another place"):
            sealer.open(sealed, place)


def test_a_secret_does_not_open_under_the_id_of_another_key() -> None:
    sealer = Sealer([NEW, OLD])
    sealed = Sealer([OLD]).seal("secret", PLACE)
    with pytest.raises(InternalError, match="damaged"):
        sealer.open(sealed.replace(OLD.id, NEW.id), PLACE)


def test_the_cipher_is_the_standard_one() -> None:
    """Another implementation of AES-GCM and HKDF opens a stored secret with the key and the place."""
    cipher, key_id, text = Sealer([OLD]).seal("secret", PLACE).split(":")
    block = hmac.digest(OLD.secret, b"seal " + PLACE.encode() + b"\1", "sha256")  # RFC 5869, 2.3: T(1)
    data = base64.b64decode(text)
    decryptor = Cipher(AES(block), GCM(data[:12], data[-16:])).decryptor()
    decryptor.authenticate_additional_data(f"{cipher}:{key_id}:{PLACE}".encode())
    assert decryptor.update(data[12:-16]) + decryptor.finalize() == b"secret"


def test_derived_keys_differ_by_purpose_and_key() -> None:
    sealer = Sealer([NEW, OLD])
    derived = [sealer.derive(purpose, key.id) for purpose in (b"a", b"b") for key in (OLD, NEW)]
    assert len({*derived, OLD.secret, NEW.secret}) == 6
    assert sealer.derive(b"a", OLD.id) == Sealer([OLD]).derive(b"a", OLD.id), "every manager derives the same"


def test_keys_change() -> None:
    sealed = Sealer([OLD]).seal("secret", PLACE)
    both = Sealer([NEW, OLD])
    assert both.open(sealed, PLACE) == "secret"
    assert not both.is_current(sealed)
    assert both.is_current(both.seal("secret", PLACE))
    only_new = Sealer([NEW])
    assert only_new.missing_key_id(sealed) == OLD.id
    with pytest.raises(InternalError, match=OLD.id):
        only_new.open(sealed, PLACE)
    reloads: list[int] = []

    def reload() -> list[SealingKey]:
        reloads.append(1)
        return [OLD]

    late = Sealer([NEW], reload=reload)
    assert late.open(sealed, PLACE) == "secret", "another manager had the key sooner"
    unknown = Sealer([new_key()]).seal("x", PLACE)
    for _ in range(3):
        with pytest.raises(InternalError):
            late.open(unknown, PLACE)
    assert len(reloads) == 2, "a key that is nowhere is looked for once"


class Managers:
    """Two managers that run, each with its copy of the key file, and a clock for both."""

    def __init__(self, folder: Path) -> None:
        self.seconds = 0.0
        self.files = [folder / name / "secrets.key" for name in ("first", "second")]
        load_or_make_keys(self.files[0])
        self.files[1].parent.mkdir()
        self.copy()
        self.sealers = [
            Sealer(
                read_keys(f), reload=partial(read_keys, f), file_stamp=partial(stamp_of, f), clock=lambda: self.seconds
            )
            for f in self.files
        ]

    def copy(self) -> None:
        shutil.copy2(self.files[0], self.files[1])

    def open_each_others(self) -> None:
        for one in self.sealers:
            sealed = one.seal("secret", PLACE)
            assert [other.open(sealed, PLACE) for other in self.sealers] == ["secret"] * 2


def test_keys_rotate_while_managers_run_and_none_meets_a_key_that_it_lacks(tmp_path: Path) -> None:
    managers = Managers(tmp_path)
    path, (first, second) = managers.files[0], managers.sealers
    old_id = first.newest_id()
    sealed = first.seal("secret", PLACE)
    new_id = add_key(path, is_standby=True).id
    for work in (managers.copy, partial(move_to_front, path, new_id), managers.copy):
        managers.seconds += 1
        managers.open_each_others()
        work()
        managers.seconds += 1
        managers.open_each_others()
    assert (first.newest_id(), second.newest_id()) == (new_id, new_id)
    assert second.open(sealed, PLACE) == "secret", "the old key is accepted until it is retired"
    assert first.derive(b"a", old_id) == Sealer([SealingKey(read_keys(path)[1].secret)]).derive(b"a", old_id)
    keep_first_key(path)
    managers.copy()
    managers.seconds += 1
    managers.open_each_others()
    for retired in managers.sealers:
        with pytest.raises(InternalError, match=old_id):
            retired.open(sealed, PLACE)
    with pytest.raises(InvalidInput, match="has no key"):
        move_to_front(path, old_id)


@pytest.mark.parametrize("content", ["", "abc", None])
def test_a_key_file_that_cannot_be_read_changes_nothing(tmp_path: Path, content: str | None) -> None:
    managers = Managers(tmp_path)
    kept = managers.files[0].read_text()
    if content is None:
        managers.files[0].unlink()
    else:
        managers.files[0].write_text(content)
    managers.seconds += 1
    managers.open_each_others()
    managers.files[0].write_text(kept)
    managers.files[0].chmod(0o600)
    new_id = add_key(managers.files[0]).id
    managers.seconds += 1
    assert managers.sealers[0].newest_id() == new_id


def test_the_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    looks = []
    sealer = Sealer([OLD], reload=lambda: [NEW], file_stamp=lambda: looks.append(1), clock=lambda: 0.5)
    for _ in range(100):
        sealer.seal("secret", PLACE)
    assert len(looks) == 1


def test_without_a_key_and_from_before_there_was_one() -> None:
    assert Sealer().seal("secret", PLACE) == "secret"
    assert Sealer([OLD]).open("secret", PLACE) == "secret"
    assert Sealer([OLD]).missing_key_id("a:b:c") is None
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
