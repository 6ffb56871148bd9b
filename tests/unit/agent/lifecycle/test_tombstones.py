"""Kernels that have ended."""

from __future__ import annotations

from uuid import UUID

from ai.backend.agent.lifecycle.tombstones import Tombstones

A, B, C = (str(UUID(int=number)) for number in (1, 2, 3))


def test_each_is_known_until_it_is_discarded() -> None:
    stones = Tombstones()
    for place, kernel_id in enumerate((A, B, C)):
        stones.add(kernel_id, float(place))
    stones.add(A, 5.0)
    assert A in stones
    assert len(stones) == 3
    assert stones.older_than(2.5) == [B, C]
    stones.discard(B)
    stones.discard(B)
    assert B not in stones
    assert stones.older_than(9.0) == [C, A]
    assert "no id" not in stones


def test_an_id_that_lies_across_two_others_is_another_one() -> None:
    stones = Tombstones()
    first, second = UUID(int=0x0102 << 112 | 0xAB), UUID(int=0xCD << 120)
    stones.add(str(first), 0.0)
    stones.add(str(second), 0.0)
    across = UUID(bytes=(first.bytes + second.bytes)[8:24])
    assert str(across) not in stones
    stones.add(str(across), 1.0)
    assert stones.older_than(2.0) == [str(first), str(second), str(across)]
    stones.discard(str(across))
    assert stones.older_than(2.0) == [str(first), str(second)]
