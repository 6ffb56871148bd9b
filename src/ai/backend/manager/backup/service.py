"""Makes backups of an installation and restores them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from ai.backend.common.errors import Conflict, InvalidInput, NotFound
from ai.backend.common.names import check_slug
from ai.backend.infra.config_store import MANAGERS, ConfigScope, ConfigStore, ScopeKind
from ai.backend.infra.files import write_atomically
from ai.backend.manager.backup.archive import BackupReader, BackupWriter, Secret
from ai.backend.manager.backup.model import FORMAT, BackupHead, ConfigEntry, SealedPart
from ai.backend.manager.backup.store import DatabaseCopier

AGENT_KEYS = "agent-keys/"
"""The prefix of the role of an agent's public key; the agent's id follows."""
_MAX_PUT_KEYS = 1000
_PUBLIC_MODE, _SECRET_MODE = 0o644, 0o600


class KeyPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the paths of the keys in the settings: a file for each role, and the folder of the agents' public keys.

    The file of ``merged_role`` has one key a line, which only grows while a manager runs.
    """

    files: Mapping[str, Path]
    agent_keys: Path
    merged_role: str = "secrets"

    def read(self) -> dict[str, bytes]:
        """Returns the contents of the key files by role; a missing file is left out. Raises OSError."""
        contents = {role: path.read_bytes() for role, path in self.files.items() if path.is_file()}
        if self.agent_keys.is_dir():
            contents |= {f"{AGENT_KEYS}{path.stem}": path.read_bytes() for path in self.agent_keys.glob("*.pub")}
        return contents

    def read_merged(self, earlier_contents: Mapping[str, bytes]) -> dict[str, bytes]:
        """Returns the contents of the key files by role; the merged file also has the keys of ``earlier_contents``.

        A merged file that is missing now stays missing.
        """
        contents = self.read()
        merged_content = contents.get(self.merged_role)
        lines = [*(merged_content or b"").splitlines(), *earlier_contents.get(self.merged_role, b"").splitlines()]
        if merged_content is not None:
            contents[self.merged_role] = b"\n".join(dict.fromkeys(lines)) + b"\n"
        return contents

    def path_of(self, role: str) -> Path | None:
        """Returns the path of the key file of a role, or None if the settings name no file for the role.

        Raises InvalidInput for the id of no agent.
        """
        if role.startswith(AGENT_KEYS):
            name = check_slug(role.removeprefix(AGENT_KEYS), what="agent_id", allow_dots=True)
            return self.agent_keys / f"{name}.pub"
        return self.files.get(role)


class Backups(msgspec.Struct, frozen=True, kw_only=True):
    """Backs up and restores the database, the shared configuration and the keys of one installation.

    ``config`` is None where the configuration is in the database.
    """

    database: DatabaseCopier
    config: ConfigStore | None
    keys: KeyPaths

    async def back_up(self, path: Path, secret: Secret, *, version: str, now: datetime, settings: str) -> SealedPart:
        """Writes a backup; managers may run meanwhile.

        Raises Conflict if the file exists already, NotFound if there is no database, Unavailable, OSError.
        """
        revision = await self.database.revision()
        if revision is None:
            raise NotFound("There is no database of a manager to back up: name its settings (mgr --config FILE)")
        head = BackupHead(
            format=FORMAT,
            version=version,
            created_at=now.isoformat(timespec="seconds"),
            database=self.database.kind,
            revision=revision,
            key=secret.new_derivation(),
        )
        keys_before = self.keys.read()
        configuration = await entries_of(self.config)
        writer = BackupWriter(path, head)
        try:
            with writer.open_database(is_compressed=self.database.kind == "postgresql") as stream:
                await self.database.write_to(stream)
            sealed_part = SealedPart(
                database_sha256=writer.database_sha256,
                database_bytes=writer.database_bytes,
                files=self.keys.read_merged(keys_before),
                settings=settings,
                configuration=configuration,
            )
            writer.finish(sealed_part, secret)
        finally:
            writer.discard()
        return sealed_part

    async def restore(
        self,
        path: Path,
        secret: Secret,
        *,
        revisions: Sequence[str],
        with_database: bool,
        report: Callable[[str], None],
    ) -> None:
        """Restores a backup into an empty installation, after all of its parts have been checked.

        ``revisions`` are those of the schema that this program knows. Without ``with_database`` the database was
        restored by other means, such as to a point in time. Raises InvalidInput for a damaged or unsuitable backup,
        Forbidden for a wrong secret, Conflict if something is there that would be lost, Unavailable, OSError.
        """
        reader = BackupReader(path)
        try:
            sealed_part = reader.open_sealed_part(secret)
            await self._check(reader, sealed_part, revisions, with_database=with_database)
            for key_path, key_content, mode in self._key_files(sealed_part):
                key_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_atomically(key_path, key_content, mode=mode)
            report(f"{len(sealed_part.files)} keys are back")
            if self.config is not None:
                await put_entries(self.config, sealed_part.configuration)
                report(f"{len(sealed_part.configuration)} values of the shared configuration are back")
            if with_database:
                with reader.open_database(sealed_part) as stream:
                    await self.database.read_from(stream)
            waiting_count = await self.database.raise_attempts()
            report(f"the database of {reader.head.created_at} is back; {waiting_count} sessions wait in it")
        finally:
            reader.close()

    async def _check(
        self, reader: BackupReader, sealed_part: SealedPart, revisions: Sequence[str], *, with_database: bool
    ) -> None:
        head = reader.head
        if head.database != self.database.kind:
            raise InvalidInput(f"the backup is of {head.database}, the settings name {self.database.kind}")
        if head.revision < revisions[0]:
            raise InvalidInput(
                f"the database of the backup is at revision {head.revision}, this program knows none before"
                f" {revisions[0]}: restore it by version {head.version} that made it, upgrade, and back up again"
            )
        if head.revision not in revisions:
            raise InvalidInput(
                f"the database of the backup is at revision {head.revision}, this program at {revisions[-1]}:"
                f" restore it by version {head.version} or newer"
            )
        if with_database:
            reader.check_database(sealed_part)
            await self.database.check_restore_target(sealed_part.database_bytes)
        elif await self.database.revision() is None:
            raise NotFound("The database has no tables: restore it first, or with this backup")
        for key_path, key_content, _ in self._key_files(sealed_part):
            if key_path.exists() and key_path.read_bytes() != key_content:
                raise Conflict(f"{key_path} exists and has other keys than the backup: move it away")
        if self.config is not None:
            restored_values = {(entry.scope, entry.key): entry.value for entry in sealed_part.configuration}
            other_entries = [
                entry_
                for entry_ in await entries_of(self.config)
                if restored_values.get((entry_.scope, entry_.key)) != entry_.value
            ]
            if other_entries:
                raise Conflict(
                    f"the shared configuration has {len(other_entries)} other values, such as {other_entries[0].key}:"
                    ' delete them (`backend.ai mgr etcd delete --prefix ""`) or name another namespace'
                )

    def _key_files(self, sealed_part: SealedPart) -> list[tuple[Path, bytes, int]]:
        """Returns the path, content and mode of each key file. Raises InvalidInput if the settings have no place for
        one.
        """
        key_files = []
        for role, key_content in sealed_part.files.items():
            key_path = self.keys.path_of(role)
            if key_path is None:
                raise InvalidInput(
                    f"the settings name no file for {role!r}, which the backup has: --print-settings prints its own"
                )
            is_public = role.endswith(("-certificate", "-public"))
            key_files.append((key_path, key_content, _PUBLIC_MODE if is_public else _SECRET_MODE))
        return key_files


def read_settings(path: Path, secret: Secret) -> str:
    """Returns the text of the manager's settings in a backup. Raises as :meth:`Backups.restore`."""
    reader = BackupReader(path)
    try:
        return reader.open_sealed_part(secret).settings
    finally:
        reader.close()


async def entries_of(config: ConfigStore | None) -> list[ConfigEntry]:
    """Returns the values of the shared configuration, except values that managers write themselves."""
    if config is None:
        return []
    _, changes = await config.read_all()
    return [
        ConfigEntry(scope=(change.scope.kind.value, change.scope.name), key=change.key, value=change.value)
        for change in changes
        if change.value is not None and not change.key.startswith(f"{MANAGERS}/")
    ]


async def put_entries(config: ConfigStore, entries: Sequence[ConfigEntry]) -> None:
    entries_of_scope: dict[tuple[str, str], list[ConfigEntry]] = {}
    for entry in entries:
        entries_of_scope.setdefault(entry.scope, []).append(entry)
    for (kind, name), scope_entries in entries_of_scope.items():
        for batch_start in range(0, len(scope_entries), _MAX_PUT_KEYS):
            values = {entry.key: entry.value for entry in scope_entries[batch_start : batch_start + _MAX_PUT_KEYS]}
            await config.put_many(values, scope=ConfigScope(ScopeKind(kind), name))
