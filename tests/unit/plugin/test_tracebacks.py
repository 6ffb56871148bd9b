"""Exceptions of plugins are described by the place in the plugin that they came from."""

from __future__ import annotations

import json

import pytest

from ai.backend.common.slots import BinarySize
from ai.backend.plugin.tracebacks import description_of


def test_the_last_place_of_the_plugin_is_named() -> None:
    with pytest.raises(KeyError) as caught:
        _ = {"model": "x"}["serial"]
    place = "plugin/test_tracebacks.py:"
    assert description_of(caught.value).startswith(f"KeyError: 'serial' ({place}")
    assert description_of(caught.value).endswith(", in test_the_last_place_of_the_plugin_is_named)")


def test_frames_of_python_and_of_the_platform_are_left_out() -> None:
    with pytest.raises(ValueError, match="Expecting") as of_python:
        json.loads("{")
    assert "test_tracebacks.py" in description_of(of_python.value)
    with pytest.raises(Exception) as of_platform:  # noqa: PT011  # any error from inside the platform
        BinarySize.parse("much")
    assert "test_tracebacks.py" in description_of(of_platform.value)


def test_an_error_without_a_traceback_is_described_by_itself() -> None:
    assert description_of(OSError("no driver")) == "OSError: no driver"
