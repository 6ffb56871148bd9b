"""Names and addresses of virtual folders."""

from __future__ import annotations

from uuid import UUID

import pytest

from ai.backend.common.errors import InvalidInput, InvalidName
from ai.backend.common.folders import FolderKey, FolderStatus, check_folder_name, parse_folder_id, parse_host
from ai.backend.common.ids import FolderId

ID = FolderId(UUID("b4b1b16c-d07f-4f1f-b60e-da9449aa60a6"))


@pytest.mark.parametrize("name", ["a", "My Data", ".config", ".ssh", "été", "자료", "x" * 64, "a-b_c.d", "v1 (old)"])
def test_names_of_folders(name: str) -> None:
    assert check_folder_name(name) == name


def test_a_name_is_kept_in_its_composed_form() -> None:
    assert check_folder_name("e\u0301te\u0301") == "été"


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a/b", "/a", "a:b", "a\nb", "a\0", "-rf", " a", "a ", "a\u202eb", "a,b", "$HOME", "a\\b"),
        *(".bashrc", ".bash_profile", ".jupyter", str(ID), ID.hex, "x" * 65, "자" * 65),
    ],
)
def test_names_that_are_paths_options_or_ids_are_refused(name: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_folder_name(name)
    assert set(caught.value.data) == {"name"}


def test_ids_are_read_with_and_without_dashes() -> None:
    assert parse_folder_id(str(ID)) == parse_folder_id(ID.hex) == ID
    assert parse_folder_id("data") is None
    assert FolderKey("local:volume1", "user:u", ID).vfid == f"user:u/{ID.hex}"


@pytest.mark.parametrize("host", ["local", ":v", "local:", "", "a\n:b", "x" * 200 + ":v"])
def test_a_host_is_a_proxy_and_a_volume(host: str) -> None:
    assert parse_host("local:volume1") == ("local", "volume1")
    with pytest.raises(InvalidInput):
        parse_host(host)


def test_what_is_in_the_trash_gives_its_name_back() -> None:
    assert [s for s in FolderStatus if not s.is_live] == [s for s in FolderStatus if s.startswith("delete-")]
