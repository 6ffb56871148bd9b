from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import AgentId, SessionId
from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.snapshot import Dependency, Quota, Snapshot, dump_json, load_json
from tests.unit.core.allocation.builders import alloc
from tests.unit.core.scheduling.builders import NOW, agent, holding, session, slots


def test_a_snapshot_survives_json() -> None:
    view = holding(agent("i-1", cuda=2, shares=["0.5"], images=frozenset({"python"}), kernel_limit=3), mem="1.5g")
    held = replace(view.held[0], devices=alloc({"mem": {"0": 3 * 2**29}}))
    opaque = replace(view.plugins[0], alloc_map=None)
    snapshot = Snapshot(
        resource_group="default",
        agents=(replace(view, held=(held,), plugins=(opaque, *view.plugins[1:])),),
        pending=(
            session(
                "a",
                slots(cpu=1),
                starts_at=NOW + timedelta(seconds=1),
                dependencies=(Dependency(session_id=SessionId(UUID(int=5)), name="b", status=SessionStatus.RUNNING),),
                designated_agents=(AgentId("i-1"),),
                quotas=("k",),
            ),
        ),
        quotas={"k": Quota(label="your keypair", limit=slots(cpu="Infinity"))},
    )
    assert load_json(dump_json(snapshot)) == snapshot


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"resource_group": 1}', b'{"resource_group": "a", "format": 99}']
)
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput):
        load_json(text)
