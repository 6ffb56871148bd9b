"""The one place that changes the status of folders."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import pytest

from ai.backend.common.folders import FolderOwnership, FolderStatus
from ai.backend.common.ids import DomainName, FolderId, UserId
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.folder import FolderTrigger as T
from ai.backend.core.lifecycle.transition import InvalidTransition
from ai.backend.manager.folders.model import Folder
from ai.backend.manager.folders.transitions import FolderTransitions
from tests.contract.store.builders import NOW

FOLDER = Folder(
    id=FolderId(UUID(int=1)),
    name="data",
    host="local:volume",
    quota_scope=f"user:{UUID(int=2)}",
    domain_name=DomainName("default"),
    ownership_type=FolderOwnership.USER,
    user_id=UserId(UUID(int=2)),
    status_changed=NOW,
    creator="user@example.com",
    created_at=NOW,
)


class Store:
    """A store of one folder."""

    def __init__(self) -> None:
        self.folder = FOLDER
        self.limits: dict[str, Any] = {}

    async def move(
        self, folder_id: FolderId, allowed: Collection[FolderStatus], to: FolderStatus, *, at: datetime, **limits: Any
    ) -> bool:
        self.limits = limits
        if self.folder.id != folder_id or self.folder.status not in allowed:
            return False
        self.folder = replace(self.folder, status=to, status_changed=at)
        return True


class Clock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def removals() -> list[str]:
    return []


@pytest.fixture
def moves(store: Store, removals: list[str]) -> FolderTransitions:
    return FolderTransitions(cast("Any", store), cast("Any", Clock()), lambda: removals.append("now"))


async def test_a_folder_lives_and_goes(store: Store, moves: FolderTransitions, removals: list[str]) -> None:
    for trigger, status in [
        (T.MADE, FolderStatus.READY),
        (T.TRASH_REQUESTED, FolderStatus.DELETE_PENDING),
        (T.RESTORE_REQUESTED, FolderStatus.READY),
        (T.TRASH_REQUESTED, FolderStatus.DELETE_PENDING),
        (T.PURGE_REQUESTED, FolderStatus.DELETE_ONGOING),
    ]:
        assert await moves.apply(store.folder, trigger, cause="test")
        assert store.folder.status is status
    assert removals == ["now"], "the loop removes the files of what was purged"


async def test_an_illegal_move_is_refused_with_the_story(
    store: Store, moves: FolderTransitions, caplog: pytest.LogCaptureFixture
) -> None:
    await moves.apply(store.folder, T.MADE, cause="folder loop")
    with caplog.at_level(logging.INFO), pytest.raises(InvalidTransition, match="not in the trash") as refused:
        await moves.apply(store.folder, T.PURGE_REQUESTED, cause="request of AKIA")
    assert store.folder.status is FolderStatus.READY
    assert [t.stimulus_id for t in refused.value.recent_transitions] == ["folder loop"]
    assert "performing -> ready by made (folder loop)" in caplog.text


async def test_who_is_too_late_changes_nothing(store: Store, moves: FolderTransitions, removals: list[str]) -> None:
    before = store.folder
    await moves.apply(before, T.MADE, cause="folder loop")
    assert not await moves.apply(before, T.FAILED, cause="another manager", info="it failed")
    assert store.folder.status is FolderStatus.READY
    assert removals == [], "what was not moved has no effects"
    assert await moves.apply(store.folder, T.REMOVED, cause="late"), "out of date is no error"
    assert store.folder.status is FolderStatus.READY
