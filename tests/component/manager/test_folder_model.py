"""Random operations of three users on folders, one by one and two at once, against a pure model of what must come out.

Two operations at once must come out as if one had come after the other.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import tempfile
import threading
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ai.backend.common.errors import BackendError
from ai.backend.common.folders import FolderPermission, FolderStatus
from ai.backend.infra.bus import Bus
from ai.backend.infra.database import Database
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.folders.facade import Folders
from ai.backend.manager.folders.model import CreateFolder, InvitationState
from ai.backend.manager.folders.sql import SqlFolderStore
from ai.backend.manager.folders.tables import folder_invitations
from tests.support.fake_storage import FakeStorage
from tests.support.migrated import migrated

T = TypeVar("T")
HOSTS = ("local:volume1", "local:volume2")
NAMES = ("a", "b")
EXISTS, MISSING, CONFLICT, FORBIDDEN = "vfolder-already-exists", "vfolder-not-found", "conflict", "forbidden"
LEAVING = "changed meanwhile, or being removed"
READ, WRITE = FolderPermission.READ_ONLY, FolderPermission.READ_WRITE


@dataclass
class Kept:
    """A folder of the model; ``state`` is live, trash or gone."""

    owner: int
    name: str
    state: str = "live"
    shares: dict[int, FolderPermission] = field(default_factory=dict)
    offers: dict[int, FolderPermission] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Op:
    """``folder`` counts the creations; ``other`` is a user, ``name`` a folder's name or a directory's."""

    kind: str
    user: int
    folder: int = 0
    other: int = 0
    name: str = "a"
    permission: FolderPermission = READ


class Model:
    """What must be: users by number, folders in the order of their creation."""

    def __init__(self) -> None:
        self.folders: list[Kept] = []

    def uses(self, user: int, name: str, but: Kept | None = None) -> bool:
        return any(
            f.state == "live" and f.name == name and f is not but and (f.owner == user or user in f.shares)
            for f in self.folders
        )

    def seen(self, user: int) -> dict[int, tuple[str, FolderPermission, str]]:
        found = {}
        for number, f in enumerate(self.folders):
            if f.state != "gone" and (f.owner == user or user in f.shares):
                may = FolderPermission.WRITE_DELETE if f.owner == user else f.shares[user]
                found[number] = (f.name, may, f.state)
        return found

    def apply(self, op: Op) -> str:
        """Change as the operation does; ``ok`` or the code of its refusal."""
        if op.kind == "create":
            if self.uses(op.user, op.name):
                return EXISTS
            self.folders.append(Kept(op.user, op.name))
            return "ok"
        if op.folder >= len(self.folders):
            return MISSING
        f = self.folders[op.folder]
        if op.kind in ("accept", "reject"):
            return self._answer(op, f)
        needs = {"restore": "trash", "purge": "trash"}.get(op.kind, "live")
        is_owner = f.owner == op.user
        if f.state == "gone" or not (is_owner or op.user in f.shares or op.kind == "hand_over"):
            return MISSING
        if f.state != needs:
            return CONFLICT
        if op.kind in ("rename", "trash", "restore", "purge", "invite", "set_share", "end_share") and not is_owner:
            return FORBIDDEN
        done: str = getattr(self, f"_{op.kind}")(op, f)
        return done

    def _answer(self, op: Op, f: Kept) -> str:
        if op.user not in f.offers or (op.kind == "accept" and f.state != "live"):
            return "not-found"
        if op.kind == "accept":
            if self.uses(op.user, f.name, but=f):
                return EXISTS
            f.shares[op.user] = f.offers[op.user]
        del f.offers[op.user]
        return "ok"

    def _rename(self, op: Op, f: Kept) -> str:
        if op.name != f.name and self.uses(f.owner, op.name, but=f):
            return EXISTS
        f.name = op.name
        return "ok"

    def _trash(self, _op: Op, f: Kept) -> str:
        f.state = "trash"
        return "ok"

    def _restore(self, _op: Op, f: Kept) -> str:
        if self.uses(f.owner, f.name, but=f):
            return EXISTS
        f.state = "live"
        return "ok"

    def _purge(self, _op: Op, f: Kept) -> str:
        f.state = "gone"
        return "ok"

    def _invite(self, op: Op, f: Kept) -> str:
        if op.other == op.user:
            return "not-found"
        if op.other not in f.shares:
            f.offers.setdefault(op.other, op.permission)
        return "ok"

    def _set_share(self, op: Op, f: Kept) -> str:
        if op.other not in f.shares:
            return "not-found"
        f.shares[op.other] = op.permission
        return "ok"

    def _end_share(self, op: Op, f: Kept) -> str:
        return "ok" if f.shares.pop(op.other, None) is not None else "not-found"

    def _leave(self, op: Op, f: Kept) -> str:
        if f.owner == op.user:
            return "invalid-api-params"
        del f.shares[op.user]
        return "ok"

    def _hand_over(self, op: Op, f: Kept) -> str:
        if op.other == f.owner:
            return "ok"
        if self.uses(op.other, f.name, but=f):
            return EXISTS
        f.owner = op.other
        f.shares.pop(op.other, None)
        f.offers.pop(op.other, None)
        return "ok"

    def _mkdir(self, op: Op, f: Kept) -> str:
        if f.owner != op.user and f.shares[op.user] is READ:
            return FORBIDDEN
        f.directories.add(op.name)
        return "ok"

    def _list(self, _op: Op, _f: Kept) -> str:
        return "ok"


class Server:
    """One manager for all examples, in a thread of its own; each example has users of its own."""

    def __init__(self, root: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.storage = FakeStorage(root / "storage", *HOSTS)
        self.database = Database(f"sqlite:///{migrated(root / 'manager.db')}")
        self.users = itertools.count()
        self.manager: Manager
        self.admin: Caller
        self.run(self._start())

    async def _start(self) -> None:
        link = MemoryLink().manager
        self.manager = Manager(ManagerSettings(), self.database, Bus(), link, storage=self.storage, hash_password=str)
        await self.manager.start()
        made = await self.manager.bootstrap.run(vfolder_hosts=HOSTS)
        assert made.admin is not None
        self.admin = await self._caller(made.admin.access_key)

    async def _caller(self, key: str) -> Caller:
        found = await self.manager.services.identity.credentials(key)
        assert found is not None
        return found.caller

    async def user(self) -> Caller:
        email = f"user{next(self.users)}@local"
        _, pair = await self.manager.services.users.create_user(self.admin, email, "a password", {})
        return await self._caller(pair.access_key)

    @property
    def folders(self) -> Folders:
        assert self.manager.services.folders is not None
        return self.manager.services.folders

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result(60)

    def stop(self) -> None:
        async def end() -> None:
            await self.manager.stop()
            await self.database.close()

        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


SERVERS: list[Server] = []


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as root:
        SERVERS.append(Server(Path(root)))
        yield
        SERVERS.pop().stop()


KINDS = (
    *("create", "rename", "trash", "restore", "purge", "hand_over", "mkdir", "list", "leave"),
    *("invite", "accept", "reject", "set_share", "end_share"),
    *("create", "invite", "accept"),  # the more often, the more there is to do
)
OF_OWNERS = ("rename", "trash", "restore", "purge", "invite", "set_share", "end_share", "mkdir", "list")
SEEDS = st.integers(0, 2**32 - 1)
"""All that hypothesis chooses: what two operations at once come to is chance, so what is drawn must not hang on it."""


def choose_op(chance: random.Random, model: Model) -> Op:
    """An operation that has something to do, nine times in ten."""
    kind = chance.choice(KINDS)
    likely: list[tuple[int, int]] = []
    for number, f in enumerate(model.folders):
        if f.state != {"restore": "trash", "purge": "trash"}.get(kind, "live"):
            continue
        users: Iterable[int] = ()
        if kind in OF_OWNERS:
            users = [f.owner]
        elif kind in ("accept", "reject"):
            users = sorted(f.offers)
        elif kind == "leave":
            users = sorted(f.shares)
        elif kind == "hand_over":
            users = range(3)
        likely += [(number, user) for user in users]
    if likely and chance.random() < 0.9:
        folder, user = chance.choice(likely)
    else:
        folder, user = chance.randint(0, len(model.folders)), chance.randrange(3)
    permission = chance.choice([READ, WRITE])
    return Op(kind, user, folder, chance.randrange(3), chance.choice(NAMES), permission)


def agrees(outcome: str, told: str) -> bool:
    """A folder that is being removed is neither there nor gone."""
    return outcome == told or (outcome == LEAVING and told in (MISSING, CONFLICT))


class FolderMachine(RuleBasedStateMachine):
    """Both at once: the model, and the manager."""

    @initialize()
    def begin(self) -> None:
        self.server = SERVERS[-1]
        self.model = Model()
        self.ids: list[UUID] = []
        self.users = [self.server.run(self.server.user()) for _ in range(3)]

    async def _offer(self, op: Op) -> UUID:
        """The id of the invitation that the operation answers."""
        store = self.server.manager.stores.folders
        assert isinstance(store, SqlFolderStore)
        c, me = folder_invitations.c, self.users[op.user]
        mine = (c.folder_id == self.ids[op.folder], c.invitee == me.email, c.state == InvitationState.PENDING)
        found = await store._select_invitations(*mine)
        return found[0].id if found else UUID(int=0)

    async def _do(self, op: Op) -> tuple[str, UUID | None]:
        """The outcome, and the id of a folder that was made."""
        folders, me = self.server.folders, self.users[op.user]
        ref = str(self.ids[op.folder]) if op.folder < len(self.ids) else str(UUID(int=7))
        other = self.users[op.other]
        try:
            match op.kind:
                case "create":
                    host = HOSTS[op.folder % 2]
                    made = await folders.service.create(me, CreateFolder(name=op.name, host=host))
                    return "ok", made.folder.id
                case "rename":
                    await folders.service.rename(me, ref, op.name)
                case "trash" | "restore" | "purge":
                    await getattr(folders.service, op.kind)(me, ref)
                case "invite":
                    await folders.sharing.invite(me, ref, op.permission, [other.email])
                case "accept" | "reject":
                    if op.folder >= len(self.ids):
                        return MISSING, None
                    await getattr(folders.sharing, op.kind)(me, await self._offer(op))
                case "set_share" | "end_share":
                    permission = op.permission if op.kind == "set_share" else None
                    await folders.sharing.set_share(me, ref, other.user_id, permission)
                case "leave":
                    await folders.sharing.leave(me, ref)
                case "hand_over":
                    await folders.service.change_owner(self.server.admin, ref, other.email)
                case "mkdir":
                    await folders.files.make_directories(me, ref, [op.name], exist_ok=True)
                case _:
                    await folders.files.list(me, ref, ".")
        except BackendError as e:
            on_its_way = e.data.get("status") == FolderStatus.DELETE_ONGOING or "meanwhile" in e.message
            return (LEAVING if e.code == CONFLICT and on_its_way else e.code), None
        return "ok", None

    @rule(seed=SEEDS)
    def one(self, seed: int) -> None:
        """One operation comes out as the model says."""
        op = choose_op(random.Random(seed), self.model)
        outcome, made = self.server.run(self._do(op))
        assert agrees(outcome, self.model.apply(op)), (op, outcome)
        self.ids += [made] if made is not None else []

    @rule(seed=SEEDS)
    def two(self, seed: int) -> None:
        """Two at once come out as one after the other, in either order."""
        chance = random.Random(seed)
        first, second = choose_op(chance, self.model), choose_op(chance, self.model)

        async def both() -> list[tuple[str, UUID | None]]:
            return list(await asyncio.gather(self._do(first), self._do(second)))

        results = self.server.run(both())
        outcomes = [outcome for outcome, _ in results]
        possible = []
        for order in ((0, 1), (1, 0)):
            model, told = deepcopy(self.model), ["", ""]
            for which in order:
                told[which] = model.apply((first, second)[which])
            ids = [results[which][1] for which in order]
            if all(map(agrees, outcomes, told)):
                possible.append((model, [made for made in ids if made is not None]))
        assert possible, (first, second, outcomes)
        seen = self._seen()
        for model, made in possible:
            if seen == self._expected(model, [*self.ids, *made]):
                self.model, self.ids = model, [*self.ids, *made]
                return
        raise AssertionError((first, second, outcomes, "what is there is of neither order"))

    def _expected(self, model: Model, ids: list[UUID]) -> list[dict[UUID, tuple[str, FolderPermission, str]]]:
        return [{ids[number]: what for number, what in model.seen(user).items()} for user in range(3)]

    def _seen(self) -> list[dict[UUID, tuple[str, FolderPermission, str]]]:
        async def look() -> list[dict[UUID, tuple[str, FolderPermission, str]]]:
            states = {FolderStatus.READY: "live", FolderStatus.DELETE_PENDING: "trash"}
            removed = (FolderStatus.DELETE_ONGOING, FolderStatus.DELETE_COMPLETE)
            lists = [await self.server.folders.service.list(user) for user in self.users]
            return [
                {
                    UUID(str(a.folder.id)): (a.folder.name, a.permission, states.get(a.folder.status, a.folder.status))
                    for a in found
                    if a.folder.status not in removed
                }
                for found in lists
            ]

        return self.server.run(look())

    @invariant()
    def nothing_else_is_there(self) -> None:
        """What each user sees, the uniqueness of their names, and the directories."""
        if not hasattr(self, "model"):
            return
        assert self._seen() == self._expected(self.model, self.ids)
        for user in range(3):
            own = [f.name for f in self.model.folders if f.state == "live" and f.owner == user]
            assert len(own) == len(set(own))
        there = {path.name: path for host in HOSTS for path in self._directories(host)}
        for number, folder in enumerate(self.model.folders):
            if folder.state != "gone":
                assert set(os.listdir(there[self.ids[number].hex])) == folder.directories

    def _directories(self, host: str) -> Iterator[Path]:
        yield from (self.server.storage.root / host.partition(":")[2]).glob("*/*")


TestFolders = FolderMachine.TestCase
TestFolders.settings = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
