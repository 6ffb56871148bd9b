"""What a source may announce."""

from __future__ import annotations

from uuid import UUID

import pytest

from ai.backend.common.errors import ArtifactRejected
from ai.backend.storage.artifacts.fetcher import raise_for
from ai.backend.storage.artifacts.model import Limits, Plan, PlannedFile, check_files, files_of
from ai.backend.storage.artifacts.pipeline import notes_on

LIMITS = Limits(max_files=3, max_file_bytes=100, max_bytes=150)
REVISION = UUID(int=7)


def files(*paths: str, size: int = 1) -> list[PlannedFile]:
    return [PlannedFile(path=path, size=size) for path in paths]


def test_files_come_back_by_path() -> None:
    assert [f.path for f in check_files(files("b", "a/é", "a-b"), LIMITS)] == ["a-b", "a/é", "b"]


@pytest.mark.parametrize(
    ("announced", "message"),
    [
        ([], "no files"),
        (files("a", "b", "c", "d"), "has 4 files"),
        (files("a", "a"), "same name"),
        (files("a/b/c", "a"), "below another"),
        (files("a", size=101), "101 bytes"),
        (files("a", size=-1), "-1 bytes"),
        (files("a", "b", size=76), "152 bytes"),
        *(
            (files(name), "not taken")
            for name in ("", "/a", "a/", "a//b", "./a", "../a", "a/..", "a\x7f", "a\0", "x" * 256)
        ),
        (files("a/" * 500 + "a"), "not taken"),
        (files("\udc80"), "not taken"),
    ],
)
def test_what_is_not_taken(announced: list[PlannedFile], message: str) -> None:
    with pytest.raises(ArtifactRejected, match=message):
        check_files(announced, LIMITS)


def test_files_of_other_plans_do_not_stand_in() -> None:
    plan = Plan(attempt=1, digest="c0ffee", origin="hub", files=tuple(files("a")))
    again = Plan(attempt=2, digest="c0ffee", origin="hub", files=tuple(files("a")))
    assert plan.fingerprint == again.fingerprint
    for other in (
        Plan(attempt=1, digest="beef", origin="hub", files=plan.files),
        Plan(attempt=1, digest="c0ffee", origin="other", files=plan.files),
        Plan(attempt=1, digest="c0ffee", origin="hub", files=tuple(files("a", size=2))),
    ):
        assert other.fingerprint != plan.fingerprint


def test_attempts_have_places_of_their_own() -> None:
    assert files_of("artifacts", REVISION, 3) == f"artifacts/{REVISION.hex}/3/files/"
    assert files_of("pulling", REVISION) == f"pulling/{REVISION.hex}/files/"


def test_no_status_below_400_is_an_error() -> None:
    for status in (200, 206, 304):
        raise_for(status, "host")


def test_notes() -> None:
    assert notes_on(files("model.safetensors"), is_verified=True) == ()
    pickled, unverified = notes_on(files("b.PT", "a/model.bin"), is_verified=False)
    assert pickled == "2 files may run code when they are loaded, such as a/model.bin."
    assert "not verified" in unverified
