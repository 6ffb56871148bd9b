"""What `up` refuses before anything is started."""

from pathlib import Path

import pytest

from ai.backend.common.errors import BackendError
from ai.backend.manager.serving.settings import ServingSettings
from ai.backend.standalone.manager_file import manager_settings
from ai.backend.standalone.options import UpOptions


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('slot_nam = "gpu"', "mock.toml: devices: it is missing; slot_nam: there is no such key"),
        ('slot_name = "gpu', "mock.toml is not TOML"),
        (None, "There is no mock accelerator file"),
    ],
)
def test_a_mock_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "mock.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BackendError, match=words):
        UpOptions(mock=str(path)).with_absolute_paths()


def test_a_folder_of_mock_files_is_refused_and_the_other_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"is a folder; --mock takes one file, --agent-config what each agent has"):
        UpOptions(mock=str(tmp_path)).with_absolute_paths()


def test_words_are_no_paths() -> None:
    options = UpOptions(mock="default", agent_config="none")
    assert options.with_absolute_paths() == options


def test_the_manager_takes_its_settings_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "manager.toml"
    file.write_text("[serving]\nmax-replicas = 3\n")
    assert manager_settings(str(file), tmp_path / "data").serving.max_replicas == 3
    assert manager_settings(str(file), tmp_path / "data").data_dir == tmp_path / "data"
    assert manager_settings(None, tmp_path).serving.max_replicas == ServingSettings().max_replicas


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[listen]\nport = 1\n", "listen is what `up` says"),
        ('data-dir = "/"', "data-dir is what `up` says"),
        ("[serving]\nmax-replica = 3\n", "serving.max-replica"),
        ("[serving", "is not TOML"),
    ],
)
def test_a_file_of_the_manager_that_cannot_be_used_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "manager.toml"
    file.write_text(text)
    with pytest.raises(BackendError, match=words):
        manager_settings(str(file), tmp_path / "data")


def test_a_file_of_the_manager_is_remembered_until_it_is_forgotten(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="There is no manager configuration"):
        UpOptions(manager_config=str(tmp_path / "none.toml")).with_absolute_paths()
    assert UpOptions().manager_file("before") == "before"
    assert UpOptions(manager_config="none").manager_file("before") is None
    assert UpOptions(manager_config="now").manager_file("before") == "now"
