"""Encrypts the secrets in the database with the newest key, and replaces secrets whose key is lost."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection, select, update

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import AccessKey
from ai.backend.infra.database import Database
from ai.backend.manager.artifacts.tables import registries
from ai.backend.manager.identity import tables as identity_tables
from ai.backend.manager.secrets.sealer import (
    Sealer,
    open_credentials,
    open_environ,
    open_secret_key,
    open_totp_key,
    seal_credentials,
    seal_environ,
    seal_secret_key,
    seal_totp_key,
)
from ai.backend.manager.sessions.tables import LIVE, sessions

_SESSION_COLUMNS = sessions.c
_DEVICE_TABLE = identity_tables.totp_devices


class FeatureSecrets(Protocol):
    """Reads, encrypts and deletes the secrets in the tables of one feature.

    ``maintenance`` cannot import such a feature, since the feature imports ``maintenance``.
    """

    def sealed_texts(self, s: Connection) -> Iterable[str]:
        """Returns the encrypted texts in the tables of the feature."""

    def seal(self, s: Connection, sealer: Sealer) -> int:
        """Seals the secrets of the feature with the newest key, and returns the number of changed rows."""

    def forget(self, s: Connection, sealer: Sealer) -> None:
        """Deletes the secrets of the feature that cannot be opened."""


async def missing_keys(database: Database, sealer: Sealer, other_secrets: Sequence[FeatureSecrets] = ()) -> set[str]:
    """Returns the ids of keys with which secrets in the database are encrypted, but that the sealer lacks."""

    def work(s: Connection) -> set[str]:
        sealed_texts = [*s.execute(select(identity_tables.keypairs.c.secret_key)).scalars()]
        sealed_texts += s.execute(select(_DEVICE_TABLE.c.key)).scalars()
        for credentials in s.execute(select(registries.c.credentials)).scalars():
            sealed_texts += credentials.values()
        for environ in s.execute(select(_SESSION_COLUMNS.sealed_environ).where(LIVE)).scalars():
            sealed_texts += environ.values()
        for feature_secrets in other_secrets:
            sealed_texts += feature_secrets.sealed_texts(s)
        return {key_id for sealed_text in sealed_texts if (key_id := sealer.missing_key_id(sealed_text)) is not None}

    return await database.run_read(work)


async def seal_rows(database: Database, sealer: Sealer, other_secrets: Sequence[FeatureSecrets] = ()) -> int:
    """Seals all secrets that are plain or sealed with an older key, and returns the number of changed rows. Raises
    InvalidInput, changing nothing, if the key of a secret is missing.
    """
    if not sealer.is_on:
        return 0
    lost_keys = await missing_keys(database, sealer, other_secrets)
    if lost_keys:
        raise InvalidInput(
            f"Secrets in the database were sealed with the key {', '.join(sorted(lost_keys))}, which the key file "
            "has not. Put that file back; if it is lost, `backend.ai mgr secrets reissue` makes new secrets."
        )
    keys = identity_tables.keypairs.c

    def work(s: Connection) -> int:
        rows = [
            row for row in s.execute(select(keys.access_key, keys.secret_key)) if not sealer.is_current(row.secret_key)
        ]
        for row in rows:
            sealed_text = seal_secret_key(
                sealer, row.access_key, open_secret_key(sealer, row.access_key, row.secret_key)
            )
            is_unchanged = (keys.access_key == row.access_key) & (keys.secret_key == row.secret_key)
            s.execute(update(identity_tables.keypairs).where(is_unchanged).values(secret_key=sealed_text))
        changed_count = len(rows) + _seal_totp(s, sealer) + _seal_registries(s, sealer) + _seal_environs(s, sealer)
        return changed_count + sum(feature_secrets.seal(s, sealer) for feature_secrets in other_secrets)

    return await database.run_write(work)


def _seal_totp(s: Connection, sealer: Sealer) -> int:
    device_rows = s.execute(select(_DEVICE_TABLE.c.user_id, _DEVICE_TABLE.c.key)).all()
    outdated_rows = [row for row in device_rows if not sealer.is_current(row.key)]
    for row in outdated_rows:
        sealed_text = seal_totp_key(sealer, row.user_id, open_totp_key(sealer, row.user_id, row.key))
        s.execute(
            update(_DEVICE_TABLE)
            .where(_DEVICE_TABLE.c.user_id == row.user_id, _DEVICE_TABLE.c.key == row.key)
            .values(key=sealed_text)
        )
    return len(outdated_rows)


def _seal_registries(s: Connection, sealer: Sealer) -> int:
    columns = registries.c
    registry_rows = s.execute(select(columns.id, columns.credentials)).all()
    outdated_rows = [row for row in registry_rows if not all(map(sealer.is_current, row.credentials.values()))]
    for row in outdated_rows:
        plain_credentials = open_credentials(sealer, row.id, row.credentials)
        sealed_text = seal_credentials(sealer, row.id, plain_credentials)
        s.execute(update(registries).where(columns.id == row.id).values(credentials=sealed_text))
    return len(outdated_rows)


def _seal_environs(s: Connection, sealer: Sealer) -> int:
    """Seals the secret variables of live sessions with the newest key, as those of ended sessions are never opened.
    Returns the number of changed rows.
    """
    session_rows = s.execute(select(_SESSION_COLUMNS.id, _SESSION_COLUMNS.sealed_environ).where(LIVE)).all()
    outdated_rows = [row for row in session_rows if not all(map(sealer.is_current, row.sealed_environ.values()))]
    for row in outdated_rows:
        values = {"sealed_environ": seal_environ(sealer, open_environ(sealer, row.sealed_environ))}
        s.execute(update(sessions).where(_SESSION_COLUMNS.id == row.id).values(values))
    return len(outdated_rows)


async def reissue_secrets(
    database: Database,
    sealer: Sealer,
    make_secret: Callable[[], str],
    *,
    at: datetime,
    other_secrets: Sequence[FeatureSecrets] = (),
) -> list[tuple[str, AccessKey, str]]:
    """Replaces secrets of keypairs that cannot be opened, and returns e-mail addresses, access keys and new secrets.

    Credentials of artifact registries that cannot be opened are deleted, and an administrator sets them again. Keys of
    one-time passwords that cannot be opened become others that nobody has: their users sign in with recovery codes.
    Sealed environment variables that cannot be opened are deleted.
    """
    keys, users = identity_tables.keypairs.c, identity_tables.users.c

    def work(s: Connection) -> list[tuple[str, AccessKey, str]]:
        keypairs_query = select(users.email, keys.access_key, keys.secret_key).join(
            identity_tables.users, users.uuid == keys.user_id
        )
        lost_rows = [
            row
            for row in s.execute(keypairs_query.order_by(users.email))
            if sealer.missing_key_id(row.secret_key) is not None
        ]
        reissued_keys = [(row.email, AccessKey(row.access_key), make_secret()) for row in lost_rows]
        for _, access_key, secret in reissued_keys:
            values = {"secret_key": seal_secret_key(sealer, access_key, secret), "modified_at": at}
            s.execute(update(identity_tables.keypairs).where(keys.access_key == access_key).values(values))
        for row in s.execute(select(registries.c.id, registries.c.credentials)).all():
            if any(sealer.missing_key_id(sealed_text) is not None for sealed_text in row.credentials.values()):
                s.execute(update(registries).where(registries.c.id == row.id).values(credentials={}))
        for row in s.execute(select(_DEVICE_TABLE.c.user_id, _DEVICE_TABLE.c.key)).all():
            if sealer.missing_key_id(row.key) is not None:
                sealed_text = seal_totp_key(sealer, row.user_id, base64.b32encode(secrets.token_bytes(20)).decode())
                s.execute(update(_DEVICE_TABLE).where(_DEVICE_TABLE.c.user_id == row.user_id).values(key=sealed_text))
        for row in s.execute(select(_SESSION_COLUMNS.id, _SESSION_COLUMNS.sealed_environ).where(LIVE)).all():
            if any(sealer.missing_key_id(sealed_text) is not None for sealed_text in row.sealed_environ.values()):
                s.execute(update(sessions).where(_SESSION_COLUMNS.id == row.id).values(sealed_environ={}))
        for feature_secrets in other_secrets:
            feature_secrets.forget(s, sealer)
        return reissued_keys

    return await database.run_write(work)
