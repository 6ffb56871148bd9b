"""What the kernels of a session use of what they have."""

from __future__ import annotations

from typing import Any

import pytest

from ai.backend.common.structs import replace
from ai.backend.manager.idle.service import utilization
from ai.backend.manager.sessions.model import Kernel
from tests.contract.store.builders import make_session


def kernel(**told: Any) -> Kernel:
    return replace(make_session().main, live_stat={"cpu_util": told})


def test_parts_are_added_where_all_have_capacities() -> None:
    many = [kernel(current="90", capacity="100"), kernel(current="0", capacity="200"), kernel(current="x")]
    assert utilization(many, ("cpu_util", "mem")) == {"cpu_util": 30}
    assert utilization([*many, kernel(current="1", pct="60")], ("cpu_util",)) == {"cpu_util": 20}


@pytest.mark.parametrize(
    "value", ["-1", "NaN", "Infinity", "1E+300", "1E+1000000", pytest.param(10**400, id="huge"), "9" * 100_000, [1], {}]
)
@pytest.mark.parametrize("part", ["current", "capacity", "pct"])
def test_what_cannot_be_measured_is_left_out(part: str, value: Any) -> None:
    """An agent tells this, and one that lies must not keep all sessions from being judged."""
    one = kernel(**{"current": "1", "capacity": "1", "pct": "1", part: value or "x"})
    assert utilization([one], ("cpu_util",)) == {}
    assert utilization([one, kernel(current="1", capacity="2")], ("cpu_util",)) == {"cpu_util": 50}
