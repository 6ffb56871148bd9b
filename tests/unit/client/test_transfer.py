"""What the SDK does around transfers, without a server."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from pathlib import Path

import pytest

from ai.backend.client.exceptions import BackendClientError
from ai.backend.client.transfer import collect, run_in_parallel


async def test_the_first_failure_ends_the_rest_quietly() -> None:
    async def fail() -> None:
        raise BackendClientError("broken")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(BackendClientError, match="broken"):
            await run_in_parallel([fail(), *(asyncio.Event().wait() for _ in range(10))], 1)
        gc.collect()
    assert not told


def test_a_file_whose_name_cannot_be_told_is_named(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")).touch()
    with pytest.raises(BackendClientError, match=r"bad\\xff"):
        collect([tmp_path], tmp_path, True)
