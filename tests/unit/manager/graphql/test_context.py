"""What the audit log says of changes."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import pytest

from ai.backend.common.errors import NotFound
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.graphql.context import Context


class Audit:
    def __init__(self) -> None:
        self.outcomes: list[str] = []

    async def record(self, *_: Any, outcome: str, **__: Any) -> None:
        self.outcomes.append(outcome)


@pytest.mark.parametrize(
    ("error", "outcome"), [(None, "success"), (NotFound("no"), NotFound.code), (KeyError("x"), "internal-error")]
)
async def test_outcomes(error: Exception | None, outcome: str) -> None:
    audit = Audit()
    with contextlib.suppress(NotFound, KeyError):
        async with Context(cast(Caller, None), audit).audit_change("create_user", "user", "a@b"):
            if error is not None:
                raise error
    assert audit.outcomes == [outcome]
