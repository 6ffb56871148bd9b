"""How many folders a session mounts (decision 0216)."""

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.manager.folders.mounts import MAX_MOUNTS, read_mounts


def test_sixty_four_folders_are_mounted_and_one_more_is_refused() -> None:
    names = [f"data-{number}:d{number}" for number in range(65)]
    assert len(read_mounts(names[:64], {}, {})) == MAX_MOUNTS == 64
    with pytest.raises(InvalidInput, match="64 folders at most") as caught:
        read_mounts(names, {}, {})
    assert caught.value.data == {"config.mounts": "too many"}
