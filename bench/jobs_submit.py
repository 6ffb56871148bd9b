"""Submits batch sessions of `true` by the SDK, so many at once, and returns when all have ended.

Prints the seconds until all were submitted, and until all had ended.

Usage: python -m bench.jobs_submit NUMBER AT_ONCE    (the environment names server and keypair)
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid

from ai.backend.client.session import AsyncSession

LIVING = "PENDING,SCHEDULED,PREPARING,PULLING,PREPARED,CREATING,RUNNING,RESTARTING,RUNNING_DEGRADED,TERMINATING"
LOOK_S = 0.2


async def submit(number: int, at_once: int) -> tuple[float, float]:
    started = time.perf_counter()
    names = iter([f"job-{uuid.uuid4().hex[:12]}" for _ in range(number)])
    async with AsyncSession() as session:

        async def submit_in_turn() -> None:
            for name in names:
                await session.ComputeSession.get_or_create(
                    "python",
                    name=name,
                    type_="batch",
                    startup_command="true",
                    enqueue_only=True,
                    resources={"cpu": "1", "mem": "64m"},
                )

        await asyncio.gather(*(submit_in_turn() for _ in range(at_once)))
        submitted_s = time.perf_counter() - started
        while (await session.ComputeSession.paginated_list(LIVING, fields=("id",), page_size=1)).total_count:  # noqa: ASYNC110  # as squeue does
            await asyncio.sleep(LOOK_S)
    return submitted_s, time.perf_counter() - started


if __name__ == "__main__":
    sys.stdout.write("{} {}\n".format(*asyncio.run(submit(int(sys.argv[1]), int(sys.argv[2])))))
