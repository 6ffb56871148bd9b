"""Stores one-time passwords, recovery codes and sign-ins in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, delete, func, insert, or_, select, update

from ai.backend.common.ids import UserId
from ai.backend.infra.database import Database
from ai.backend.infra.database.batching import chunks
from ai.backend.manager.identity import tables
from ai.backend.manager.identity.model import SignInRecord, TotpDevice
from ai.backend.manager.query.model import Page
from ai.backend.manager.secrets.sealer import Sealer, open_totp_key, seal_totp_key

_DEVICE_COLUMNS = tables.totp_devices.c
_CODE_COLUMNS = tables.recovery_codes.c
_SIGN_IN_COLUMNS = tables.sign_ins.c
_NO_FAILURES: dict[str, Any] = {"failures": 0, "failed_at": None}


class SqlAccountStore:
    """Implements :class:`ai.backend.manager.identity.store.AccountStore`."""

    def __init__(self, database: Database, sealer: Sealer | None = None) -> None:
        self._db = database
        self._sealer = sealer or Sealer()

    async def totp(self, user_id: UserId) -> TotpDevice | None:
        count = select(func.count()).select_from(tables.recovery_codes).where(_CODE_COLUMNS.user_id == user_id)
        query = select(tables.totp_devices, count.scalar_subquery().label("code_count"))
        for row in await self._db.fetch(query.where(_DEVICE_COLUMNS.user_id == user_id)):
            return TotpDevice(
                key=open_totp_key(self._sealer, user_id, row.key),
                is_active=row.is_active,
                created_at=row.created_at,
                recovery_codes=row.code_count,
            )
        return None

    async def put_totp(self, user_id: UserId, device: TotpDevice) -> bool:
        row = {
            "user_id": user_id,
            "key": seal_totp_key(self._sealer, user_id, device.key),
            "is_active": False,
            "created_at": device.created_at,
            "last_step": 0,
            **_NO_FAILURES,
        }

        def work(s: Connection) -> bool:
            _lock_user(s, user_id)
            s.execute(delete(tables.totp_devices).where(_is_of_user(user_id), _DEVICE_COLUMNS.is_active.is_(False)))
            if s.execute(select(_DEVICE_COLUMNS.user_id).where(_is_of_user(user_id))).first() is not None:
                return False
            s.execute(insert(tables.totp_devices), row)
            return True

        return await self._db.run_write(work)

    async def activate_totp(self, user_id: UserId, *, step: int, digests: Collection[str]) -> bool:
        statement = update(tables.totp_devices).where(_is_of_user(user_id), _DEVICE_COLUMNS.is_active.is_(False))

        def work(s: Connection) -> bool:
            if not s.execute(statement.values(is_active=True, last_step=step, **_NO_FAILURES)).rowcount:
                return False
            _replace_codes(s, user_id, digests)
            s.execute(update(tables.users).where(tables.users.c.uuid == user_id).values(totp_activated=True))
            return True

        return await self._db.run_write(work)

    async def delete_totp(self, user_id: UserId) -> bool:
        def work(s: Connection) -> bool:
            s.execute(update(tables.users).where(tables.users.c.uuid == user_id).values(totp_activated=False))
            s.execute(delete(tables.recovery_codes).where(_CODE_COLUMNS.user_id == user_id))
            return bool(s.execute(delete(tables.totp_devices).where(_is_of_user(user_id))).rowcount)

        return await self._db.run_write(work)

    async def replace_recovery_codes(self, user_id: UserId, digests: Collection[str]) -> None:
        await self._db.run_write(lambda s: _replace_codes(s, user_id, digests))

    async def count_totp_try(self, user_id: UserId, *, now: datetime, limit: int, window: timedelta) -> bool:
        is_window_over = or_(_DEVICE_COLUMNS.failed_at.is_(None), _DEVICE_COLUMNS.failed_at <= now - window)
        statement = (
            update(tables.totp_devices)
            .where(_is_of_user(user_id), or_(is_window_over, _DEVICE_COLUMNS.failures < limit))
            .values(failures=case((is_window_over, 1), else_=_DEVICE_COLUMNS.failures + 1), failed_at=now)
        )
        return bool(await self._db.run_write(lambda s: s.execute(statement).rowcount))

    async def spend_step(self, user_id: UserId, step: int) -> bool:
        statement = update(tables.totp_devices).where(
            _is_of_user(user_id), _DEVICE_COLUMNS.is_active.is_(True), _DEVICE_COLUMNS.last_step < step
        )
        return bool(
            await self._db.run_write(lambda s: s.execute(statement.values(last_step=step, **_NO_FAILURES)).rowcount)
        )

    async def spend_recovery_code(self, user_id: UserId, digest: str) -> bool:
        def work(s: Connection) -> bool:
            matches_code = and_(_CODE_COLUMNS.user_id == user_id, _CODE_COLUMNS.digest == digest)
            if not s.execute(delete(tables.recovery_codes).where(matches_code)).rowcount:
                return False
            s.execute(update(tables.totp_devices).where(_is_of_user(user_id)).values(**_NO_FAILURES))
            return True

        return await self._db.run_write(work)

    async def add_sign_ins(self, records: Sequence[SignInRecord]) -> None:
        rows = [
            {
                "user_id": record.user_id,
                "at": record.at,
                "address": record.address[:64],
                "method": record.method[:64],
                "outcome": record.outcome[:64],
            }
            for record in records
        ]

        def work(s: Connection) -> None:
            users = tables.users.c
            existing_ids = {
                row.uuid
                for chunk in chunks({record.user_id for record in records})
                for row in s.execute(select(users.uuid).where(users.uuid.in_(chunk)))
            }
            storable_rows = [row for row in rows if row["user_id"] in existing_ids]
            if storable_rows:
                s.execute(insert(tables.sign_ins), storable_rows)

        await self._db.run_write(work)

    async def sign_ins(self, user_id: UserId, *, limit: int, offset: int) -> Page[SignInRecord]:
        is_own = _SIGN_IN_COLUMNS.user_id == user_id

        def work(s: Connection) -> Page[SignInRecord]:
            total = s.execute(select(func.count()).select_from(tables.sign_ins).where(is_own)).scalar_one()
            query = (
                select(tables.sign_ins).where(is_own).order_by(_SIGN_IN_COLUMNS.id.desc()).limit(limit).offset(offset)
            )
            items = [
                SignInRecord(
                    user_id=UserId(row.user_id), at=row.at, address=row.address, method=row.method, outcome=row.outcome
                )
                for row in s.execute(query)
            ]
            return Page(items=items, total_count=total)

        return await self._db.run_read(work)

    async def purge_sign_ins(self, *, before: datetime) -> None:
        await self._db.execute(delete(tables.sign_ins).where(_SIGN_IN_COLUMNS.at < before))


def _is_of_user(user_id: UserId) -> ColumnElement[bool]:
    return _DEVICE_COLUMNS.user_id == user_id


def _lock_user(s: Connection, user_id: UserId) -> None:
    users = tables.users.c
    s.execute(select(users.uuid).where(users.uuid == user_id).with_for_update()).all()


def _replace_codes(s: Connection, user_id: UserId, digests: Collection[str]) -> None:
    s.execute(delete(tables.recovery_codes).where(_CODE_COLUMNS.user_id == user_id))
    if digests:
        s.execute(insert(tables.recovery_codes), [{"user_id": user_id, "digest": digest} for digest in digests])
