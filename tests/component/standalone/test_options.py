"""What `up` refuses before anything is started."""

from pathlib import Path

import pytest

from ai.backend.common.errors import BackendError
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
        UpOptions(mock=str(path)).checked()


def test_a_folder_of_mock_files_is_refused_and_the_other_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"is a folder; --mock takes one file, --agent-config what each agent has"):
        UpOptions(mock=str(tmp_path)).checked()


def test_words_are_no_paths() -> None:
    options = UpOptions(mock="default", agent_config="none")
    assert options.checked() == options
