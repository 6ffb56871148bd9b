"""What a session reports of itself cannot stop the measuring of the other sessions of its node."""

from __future__ import annotations

from uuid import UUID

import pytest

from ai.backend.node.workload.channel import parse
from ai.backend.runtime.kubernetes.records import PodRecord
from ai.backend.runtime.kubernetes.statistics import MAX_PIDS, measurements_of, read_sample

RECORD = PodRecord(kernel_id=UUID(int=1), attempt=1, session_id=UUID(int=2), node="n", memory_bytes=1 << 30)


def test_a_report_becomes_measurements() -> None:
    sample = read_sample(parse(b'{"t":"stats","cpu_ms":12.5,"mem":4096,"pids":[1,2]}'), None, 1.0)
    assert sample is not None
    assert [measurement.key for measurement in measurements_of(sample, RECORD)] == [
        "cpu_used",
        "cpu_util",
        "mem",
        "pids",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        b'"cpu_ms":NaN',
        b'"cpu_ms":Infinity',
        b'"mem":1' + b"0" * 400,
        b'"mem":-1',
        b'"net_rx":' + str(2**63).encode(),
        b'"pids":[%s]' % b",".join([b"1"] * (MAX_PIDS + 1)),
        b'"pids":[0]',
    ],
)
def test_a_number_that_cannot_be_computed_with_is_dropped(fields: bytes) -> None:
    assert read_sample(parse(b'{"t":"stats",%s}' % fields), None, 1.0) is None
