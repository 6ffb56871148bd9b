"""Backups of an installation in memory: what is refused, and that a restored one is the same."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import pytest

from ai.backend.common.errors import BackendError, Conflict, Forbidden, InvalidInput
from ai.backend.common.structs import replace
from ai.backend.infra.config_store import ConfigScope, MemoryConfigStore, ScopeKind
from ai.backend.manager.backup.archive import BackupReader, KeyFile, Passphrase, Secret
from ai.backend.manager.backup.model import KeyDerivation
from ai.backend.manager.backup.service import Backups, KeyPaths, read_settings
from ai.backend.manager.backup.store import DatabaseKind

NODE = ConfigScope(ScopeKind.NODE, "i-1")


class FixedKey:
    """A key that costs no time."""

    def new_derivation(self) -> KeyDerivation:
        return KeyDerivation(key_id="fixed")

    def derive(self, derivation: KeyDerivation) -> bytes:
        return derivation.key_id.encode().ljust(32)


SECRET = FixedKey()


@dataclass
class MemoryDatabase:
    """A database of some bytes."""

    content: bytes | None = None
    kind: DatabaseKind = "sqlite"
    settled: int = 0

    async def revision(self) -> str | None:
        return None if self.content is None else "0002"

    async def write_to(self, output: IO[bytes]) -> None:
        assert self.content is not None
        output.write(self.content)

    async def check_restore_target(self, needed_bytes: int) -> None:
        if self.content is not None:
            raise Conflict("it has tables")

    async def read_from(self, copy: IO[bytes]) -> None:
        self.content = copy.read()

    async def raise_attempts(self) -> int:
        self.settled += 1
        return 3


def _places(folder: Path) -> KeyPaths:
    files = {"secrets": folder / "secrets.key", "link": folder / "link.key", "tls-certificate": folder / "tls.pem"}
    return KeyPaths(files=files, agent_keys=folder / "agents")


@pytest.fixture
async def site(tmp_path: Path) -> Backups:
    folder = tmp_path / "site"
    (folder / "agents").mkdir(parents=True)
    for name in ("secrets.key", "link.key", "tls.pem", "agents/i-1.pub"):
        (folder / name).write_text(f"{name}\n")
    config = MemoryConfigStore()
    await config.put_many({"volumes/local": "x", "nodes/managers/a_6011": "{}"})
    await config.put_many({"volumes/local": "y"}, scope=NODE)
    return Backups(database=MemoryDatabase(b"rows" * 1000), config=config, keys=_places(folder))


def _empty(tmp_path: Path, name: str = "new") -> Backups:
    return Backups(database=MemoryDatabase(), config=MemoryConfigStore(), keys=_places(tmp_path / name))


async def _back_up(site: Backups, path: Path, secret: Secret = SECRET) -> Path:
    await site.back_up(path, secret, version="26.11.0", now=datetime(2026, 11, 1, tzinfo=UTC), settings="a = 1\n")
    return path


async def _restore(site: Backups, path: Path, secret: Secret = SECRET, *, with_database: bool = True) -> list[str]:
    lines: list[str] = []
    await site.restore(path, secret, revisions=["0001", "0002"], with_database=with_database, report=lines.append)
    return lines


async def test_a_restored_installation_is_the_same(site: Backups, tmp_path: Path) -> None:
    path = await _back_up(site, tmp_path / "backup")
    assert path.stat().st_mode & 0o777 == 0o600
    new = _empty(tmp_path)
    lines = await _restore(new, path)
    assert lines[-1] == "the database of 2026-11-01T00:00:00+00:00 is back; 3 sessions wait in it"
    assert isinstance(new.database, MemoryDatabase)
    assert (new.database.content, new.database.settled) == (b"rows" * 1000, 1)
    assert new.keys.read() == site.keys.read()
    assert new.keys.files["link"].stat().st_mode & 0o777 == 0o600
    assert new.config is not None
    assert await new.config.get_prefix("") == {"volumes/local": "x"}
    assert await new.config.get("volumes/local", scopes=(NODE,)) == "y"
    assert read_settings(path, SECRET) == "a = 1\n"


async def test_no_secret_lies_open_in_the_file(site: Backups, tmp_path: Path) -> None:
    site.keys.files["secrets"].write_text("only-the-key-file-has-this\n")
    content = (await _back_up(site, tmp_path / "backup")).read_bytes()
    assert b"only-the-key-file-has-this" not in content


async def test_a_key_that_was_removed_during_the_backup_is_in_it(site: Backups, tmp_path: Path) -> None:
    """The copy of the database may be older than the removal."""

    @dataclass
    class Slow(MemoryDatabase):
        async def write_to(self, output: IO[bytes]) -> None:
            await super().write_to(output)
            site.keys.files["secrets"].write_text("newer\n")

    path = await _back_up(replace(site, database=Slow(b"rows")), tmp_path / "backup")
    new = _empty(tmp_path)
    await _restore(new, path)
    assert new.keys.files["secrets"].read_text() == "newer\nsecrets.key\n"


async def test_key_files_seal_and_open(site: Backups, tmp_path: Path) -> None:
    first, second = tmp_path / "first.key", tmp_path / "second.key"
    for number, path in enumerate((first, second)):
        path.write_text(f"{number}" * 64 + "\n")
        path.chmod(0o600)
    path = await _back_up(site, tmp_path / "backup", KeyFile(first))
    with pytest.raises(InvalidInput, match="does not have"):
        read_settings(path, KeyFile(second))
    with pytest.raises(InvalidInput, match="give --key-file"):
        read_settings(path, Passphrase("correct horse battery"))
    second.write_text(second.read_text() + first.read_text())
    assert read_settings(path, KeyFile(second)) == "a = 1\n"


async def test_another_passphrase_opens_nothing(site: Backups, tmp_path: Path) -> None:
    path = await _back_up(site, tmp_path / "backup", Passphrase("correct horse battery"))
    new = _empty(tmp_path)
    with pytest.raises(Forbidden, match="does not open"):
        await _restore(new, path, Passphrase("incorrect horse battery"))
    assert new.keys.read() == {}
    with pytest.raises(InvalidInput, match="at least 12"):
        Passphrase("short")


@pytest.mark.parametrize("part", ["backup.json", "database", "sealed"])
async def test_a_changed_part_is_refused(site: Backups, tmp_path: Path, part: str) -> None:
    """Also if the check sum of the ZIP fits."""
    import zipfile

    path, changed = await _back_up(site, tmp_path / "backup"), tmp_path / "changed"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            target.writestr(
                name,
                data.replace(b"26.11.0", b"26.11.1").replace(b"rows", b"rowz", 1)
                if name == part != "sealed"
                else data[:-1] + b"x"
                if name == part
                else data,
            )
    new = _empty(tmp_path)
    with pytest.raises(BackendError):
        await _restore(new, changed)
    assert isinstance(new.database, MemoryDatabase)
    assert (new.database.content, new.keys.read()) == (None, {})


async def test_what_would_be_lost_is_refused_before_anything_changes(site: Backups, tmp_path: Path) -> None:
    path = await _back_up(site, tmp_path / "backup")
    with pytest.raises(Conflict, match="exists already"):
        await _back_up(site, path)
    with pytest.raises(Conflict, match="has tables"):
        await _restore(site, path)
    keyed = _empty(tmp_path, "keyed")
    keyed.keys.files["link"].parent.mkdir()
    keyed.keys.files["link"].write_text("another\n")
    with pytest.raises(Conflict, match="other keys"):
        await _restore(keyed, path)
    configured = _empty(tmp_path, "configured")
    assert configured.config is not None
    await configured.config.put_many({"volumes/other": "z"})
    with pytest.raises(Conflict, match="1 other values, such as volumes/other"):
        await _restore(configured, path)
    for refused in (keyed, configured):
        assert isinstance(refused.database, MemoryDatabase)
        assert refused.database.content is None


async def test_unsuitable_backups_are_refused(site: Backups, tmp_path: Path) -> None:
    path = await _back_up(site, tmp_path / "backup")
    new = _empty(tmp_path)
    with pytest.raises(InvalidInput, match=r"is at revision 0002, this program at 0001: .*26\.11\.0 or newer"):
        await new.restore(path, SECRET, revisions=["0001"], with_database=True, report=print)
    with pytest.raises(InvalidInput, match=r"is at revision 0002, this program knows none before 0038: .*26\.11\.0"):
        await new.restore(path, SECRET, revisions=["0038"], with_database=True, report=print)
    with pytest.raises(InvalidInput, match="the settings name postgresql"):
        await _restore(replace(new, database=MemoryDatabase(kind="postgresql")), path)
    with pytest.raises(InvalidInput, match="'tls-certificate'"):
        await _restore(
            replace(new, keys=replace(new.keys, files={"secrets": tmp_path / "s", "link": tmp_path / "l"})), path
        )
    (tmp_path / "text").write_text("no backup")
    with pytest.raises(InvalidInput, match="is not a backup"):
        BackupReader(tmp_path / "text")


async def test_a_database_that_came_back_by_other_means_is_kept(site: Backups, tmp_path: Path) -> None:
    path = await _back_up(site, tmp_path / "backup")
    new = replace(_empty(tmp_path), database=MemoryDatabase(b"to a point in time"))
    await _restore(new, path, with_database=False)
    assert isinstance(new.database, MemoryDatabase)
    assert (new.database.content, new.database.settled) == (b"to a point in time", 1)
