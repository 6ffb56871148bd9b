"""Stored one-time passwords, recovery codes and sign-ins: what is spent is spent once, also by many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import text

from ai.backend.common.ids import AccessKey, DomainName, UserId
from ai.backend.common.states import UserRole
from ai.backend.common.structs import replace
from ai.backend.infra.database import Database
from ai.backend.manager.composition.stores import FEATURE_SECRETS, Stores
from ai.backend.manager.identity.model import MAX_PASSWORD_HISTORY, Keypair, SignInRecord, TotpDevice, User
from ai.backend.manager.identity.store import KeypairSecret
from ai.backend.manager.maintenance.sql import missing_keys, reissue_secrets, seal_rows
from ai.backend.manager.secrets.sealer import Sealer, new_key, open_environ, seal_environ
from ai.backend.manager.serving.service import event_of
from tests.contract.store.builders import ended, make_session
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server
from tests.unit.manager.serving.world import make_service

NOW = datetime(2026, 1, 2, tzinfo=UTC)
USER = UserId(uuid4())
OLD, NEW = new_key(), new_key()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    if request.param == "sqlite":
        database = Database(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
    else:
        server = shared_server()
        database = Database(server.url(emptied(server, migrated_template())))
    yield database
    await database.close()


@pytest.fixture
async def stores(database: Database) -> Stores:
    stores = Stores.sql(database, Sealer([OLD]))
    user = User(
        uuid=USER,
        username="user",
        email="user@local",
        role=UserRole.USER,
        domain_name=DomainName("default"),
        created_at=NOW,
        modified_at=NOW,
    )
    key = AccessKey("AKIAUSER")
    pair = Keypair(access_key=key, user_id=USER, user_email=user.email, created_at=NOW, modified_at=NOW)
    secret = KeypairSecret(keypair=pair, secret_key="s3cret")
    await stores.identities.put_user(user, password_hash="first", groups=[], keypair=secret)
    return stores


async def enrolled(stores: Stores) -> None:
    device = TotpDevice(key="JBSWY3DPEHPK3PXP", is_active=False, created_at=NOW)
    assert await stores.accounts.put_totp(USER, device)
    assert await stores.accounts.put_totp(USER, device), "what is not confirmed is begun anew"
    assert await stores.accounts.activate_totp(USER, step=10, digests=["a" * 64, "b" * 64])
    assert not await stores.accounts.activate_totp(USER, step=11, digests=[])
    assert not await stores.accounts.put_totp(USER, device)


async def test_what_is_spent_is_spent_once(stores: Stores) -> None:
    await enrolled(stores)
    accounts = stores.accounts
    told = await accounts.totp(USER)
    assert told == TotpDevice(key="JBSWY3DPEHPK3PXP", is_active=True, created_at=NOW, recovery_codes=2)
    assert sorted(await asyncio.gather(*(accounts.spend_step(USER, 11) for _ in range(5)))) == [False] * 4 + [True]
    assert not await accounts.spend_step(USER, 10)
    codes = await asyncio.gather(*(accounts.spend_recovery_code(USER, "a" * 64) for _ in range(5)))
    assert sorted(codes) == [False] * 4 + [True]
    user = await stores.identities.user(uuid=USER)
    assert user is not None
    assert user.totp_activated
    assert await accounts.delete_totp(USER)
    assert not await accounts.delete_totp(USER)
    assert not await accounts.spend_recovery_code(USER, "b" * 64)


async def test_failures_are_counted_and_forgotten(stores: Stores) -> None:
    await enrolled(stores)
    window = timedelta(minutes=15)

    async def counted(at: datetime) -> bool:
        return await stores.accounts.count_totp_try(USER, now=at, limit=3, window=window)

    assert sorted(await asyncio.gather(*(counted(NOW) for _ in range(8)))) == [False] * 5 + [True] * 3
    assert not await counted(NOW + window - timedelta(seconds=1))
    assert await counted(NOW + window)
    assert await stores.accounts.spend_step(USER, 12)
    assert [await counted(NOW + window) for _ in range(4)] == [True, True, True, False]


async def test_keys_are_sealed_anew_and_lost_ones_are_no_open_door(database: Database, stores: Stores) -> None:
    await enrolled(stores)

    async def stored() -> str:
        rows = await database.run_read(lambda s: s.execute(text("SELECT key FROM totp_devices")).all())
        return str(rows[0][0])

    assert OLD.id in await stored()
    assert await seal_rows(database, Sealer([NEW, OLD])) == 2
    assert NEW.id in await stored()
    other = Sealer([new_key()])
    assert await missing_keys(database, other) == {NEW.id}
    await reissue_secrets(database, other, lambda: "x" * 48, at=NOW)
    assert await missing_keys(database, other) == set()
    lost = await Stores.sql(database, other).accounts.totp(USER)
    assert lost is not None
    assert (lost.is_active, lost.recovery_codes) == (True, 2)
    assert lost.key != "JBSWY3DPEHPK3PXP"


async def test_variables_of_revisions_and_sessions_are_sealed_anew(database: Database, stores: Stores) -> None:
    """Variables of ended sessions stay as they are, since nobody opens them."""
    plain = {"NGC_API_KEY": "nvapi-planted"}
    old = seal_environ(Sealer([OLD]), plain)
    live, over = (make_session(name, sealed_environ=old) for name in ("live", "over"))
    for session in (live, over):
        await stores.sessions.insert(session, events=[])
    await stores.sessions.save([ended(over)])
    service = make_service()
    spec = replace(service.revisions[0].spec, sealed_environ=old)
    service = replace(service, revisions=(replace(service.revisions[0], spec=spec),))
    serving = stores.serving
    assert serving is not None
    await serving.insert(service, event_of(service.endpoint, NOW, "endpoint", {}), limit=10)

    async def stored() -> list[Mapping[str, str]]:
        told = await serving.get(service.endpoint.id)
        assert told is not None
        sessions = [await stores.sessions.get(each.id) for each in (live, over)]
        assert all(sessions)
        return [told.revisions[0].spec.sealed_environ, *(each.sealed_environ for each in sessions if each)]

    both = Sealer([NEW, OLD])
    await seal_rows(database, both, FEATURE_SECRETS)
    assert [f":{NEW.id}:" in each["NGC_API_KEY"] for each in await stored()] == [True, True, False]
    assert [open_environ(both, each) for each in await stored()] == [plain] * 3
    other = Sealer([new_key()])
    assert await missing_keys(database, other, FEATURE_SECRETS) == {NEW.id}
    await reissue_secrets(database, other, lambda: "x" * 48, at=NOW, other_secrets=FEATURE_SECRETS)
    assert await missing_keys(database, other, FEATURE_SECRETS) == set()
    assert (await stored())[:2] == [{}, {}]


async def test_old_passwords_and_sign_ins_are_bounded_and_go_with_their_user(stores: Stores) -> None:
    for number in range(MAX_PASSWORD_HISTORY + 5):
        await stores.identities.change_user(USER, password_hash=f"hash {number}")
    old = await stores.identities.old_passwords(USER, 100)
    assert old[:2] == [f"hash {MAX_PASSWORD_HISTORY + 4}", f"hash {MAX_PASSWORD_HISTORY + 3}"]
    assert len(old) == MAX_PASSWORD_HISTORY + 1
    records = [
        SignInRecord(user_id=user, at=NOW + timedelta(hours=n), address="192.0.2.1", method="password", outcome="ok")
        for n, user in enumerate((USER, USER, UserId(uuid4())))
    ]
    await stores.accounts.add_sign_ins(records)
    page = await stores.accounts.sign_ins(USER, limit=1, offset=0)
    assert (page.items, page.total_count) == ([records[1]], 2)
    await stores.accounts.purge_sign_ins(before=NOW + timedelta(hours=1))
    assert (await stores.accounts.sign_ins(USER, limit=9, offset=0)).total_count == 1
    await enrolled(stores)
    assert await stores.identities.delete_user(USER)
    assert await stores.accounts.totp(USER) is None
    assert (await stores.accounts.sign_ins(USER, limit=9, offset=0)).total_count == 0
