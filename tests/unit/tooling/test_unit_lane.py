"""The lint of the unit lane refuses sleeps, and lists private accesses."""

import pytest
from tools.unit_lane import privates, sleeps


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.sleep(0.1)",
        "import asyncio\nasync def f(): await asyncio.sleep(1)",
        "import asyncio, time\nasync def f(): await asyncio.to_thread(time.sleep, 60)",
        "from time import sleep\n",
        "from asyncio import sleep as pause\n",
        "import asyncio\nasync def f(s): await asyncio.sleep(s)",
    ],
)
def test_sleeps_are_refused(text: str) -> None:
    assert len(sleeps(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import asyncio\nasync def f(): await asyncio.sleep(0)",
        "async def sleep(seconds): ...\nsleep(5)",
        "from ai.backend.simulator.world import World\nimport asyncio\nasync def f(): await asyncio.sleep(60)",
    ],
)
def test_yielding_and_simulated_time_are_allowed(text: str) -> None:
    assert sleeps(text) == []


def test_private_accesses_of_others_are_listed() -> None:
    text = "from ai.backend.a import _b, c\nself._own\nx._other\nx.__dict__\nx.public\n"
    assert list(privates(text)) == [(1, "_b"), (3, "x._other")]
