"""`backend.ai service update`: what it sends."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from ai.backend.cli.service.commands import _CLEARED_FIELDS, update
from ai.backend.manager.serving.schemas import ModifyServiceBody


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "BACKEND_ENDPOINT": "http://127.0.0.1:1",
        "BACKEND_ACCESS_KEY": "AKIATEST",
        "BACKEND_SECRET_KEY": "secret",
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)


def test_everything_that_it_clears_may_be_null() -> None:
    fields = {field.name: field for field in msgspec.structs.fields(ModifyServiceBody)}
    document = dict.fromkeys(_CLEARED_FIELDS.values())
    body = msgspec.convert(document, ModifyServiceBody)
    assert {name for name in fields if getattr(body, name) is None} == set(document)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say what is to change"),
        (["--clear", "tag", "--tag", "mine"], "give either --clear tag"),
        (["--clear", "env", "--env", "A=b"], "give either --clear env"),
        (["--clear", "image"], "is not one of"),
    ],
)
def test_a_wrong_use_is_told_before_anything_is_sent(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(update, ["my-service", *arguments])
    assert done.exit_code == 2, done.output
    assert message in done.output
