"""When the memory of a peak is given back."""

from __future__ import annotations

from ai.backend.infra.process.memory import MemoryTrimmer


class Blocks:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


async def test_once_after_each_peak() -> None:
    blocks, rests = Blocks(), []

    async def rest() -> None:
        rests.append(blocks.now)

    trimmer = MemoryTrimmer([rest], count_blocks=blocks)
    assert not await trimmer.check()  # nothing has happened
    for now in (1_200_000, 1_300_000, 1_300_000, 1_300_000, 1_150_000, 1_011_500, 1_011_000):  # it rises, and falls
        blocks.now = now
        assert not await trimmer.check()
    assert await trimmer.check()  # it has come to rest
    assert rests == [1_011_000]
    assert not await trimmer.check()
    blocks.now = 1_005_000  # what comes and goes all the time
    assert not await trimmer.check()
    assert not await trimmer.check()
    blocks.now = 1_100_000
    assert not await trimmer.check()
    blocks.now = 1_020_000
    assert not await trimmer.check()
    assert not await trimmer.check()
    assert await trimmer.check()
    assert len(rests) == 2
