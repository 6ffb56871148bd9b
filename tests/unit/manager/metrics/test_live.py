"""What agents may report of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.wire.reports import StatReport
from ai.backend.manager.metrics.live import LiveMetrics

METRICS = {"cpu_util": {"current": "1.5", "capacity": None, "pct": "0.00", "unit_hint": "percent"}}
ENCODED = msgspec.msgpack.encode(METRICS)


class Store:
    def __init__(self) -> None:
        self.stats: dict[KernelId, Mapping[str, Any]] = {}

    async def bump(self, queries: Mapping[SessionId, int], stats: Mapping[KernelId, Mapping[str, Any]]) -> None:
        msgspec.json.encode({str(kernel_id): stat for kernel_id, stat in stats.items()})  # as the database's column
        self.stats |= stats


@pytest.mark.parametrize(
    "hostile",
    [
        ENCODED.replace(b"percent", b"perce\xff\xff"),
        b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0",
        msgspec.msgpack.encode({"a": {"current": msgspec.msgpack.Ext(5, b"x")}}),
        msgspec.msgpack.encode({"a": {(1, 2): 3}}),
        b"\x93",
        b"",
    ],
)
async def test_nonsense_of_one_agent_keeps_no_statistics_of_others_from_the_database(hostile: bytes) -> None:
    store = Store()
    live = LiveMetrics(store)
    honest, other = KernelId(UUID(int=1)), KernelId(UUID(int=2))
    for agent_id, kernel_id, statistics in (("agent-1", honest, ENCODED), ("agent-2", other, hostile)):
        report = StatReport(agent_id=agent_id, at=0.0, kernels={str(kernel_id): cast(Any, msgspec.Raw(statistics))})
        live.put(report, {str(kernel_id): kernel_id})
    assert (live.kernel_statistics(honest), live.kernel_statistics(other)) == (METRICS, None)
    await live.flush()
    assert store.stats == {honest: METRICS}
