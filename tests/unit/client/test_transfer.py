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


def test_links_in_a_tree_are_followed(tmp_path: Path) -> None:
    tree, elsewhere = tmp_path / "tree", tmp_path / "elsewhere"
    tree.mkdir()
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (tree / "link").symlink_to(elsewhere)
    assert collect([tree], tmp_path, True) == ([("tree/link/file", tree / "link" / "file")], ["tree", "tree/link"])
    (elsewhere / "back").symlink_to(tree)
    with pytest.raises(BackendClientError, match=r"tree/link/back is a link to a directory that contains it"):
        collect([tree], tmp_path, True)


def test_what_is_no_file_in_a_tree_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BackendClientError, match="pipe is no regular file"):
        collect([tmp_path], tmp_path, True)
    (tmp_path / "pipe").unlink()
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(BackendClientError, match="dangling is no regular file"):
        collect([tmp_path], tmp_path, True)
