"""Describes an exception of a plugin by the place in the plugin's code that raised it."""

from __future__ import annotations

import traceback
from pathlib import Path

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[1])
_PLATFORM_FOLDERS = tuple(
    f"{_PACKAGE_ROOT}/{name}/" for name in ("agent", "cli", "common", "core", "plugin", "pluginhost")
)
_PYTHON_FOLDER = str(Path(traceback.__file__).resolve().parent)


def description_of(error: BaseException) -> str:
    """Returns an exception's type and message, and the innermost place in the plugin's own code on its way.

    Such as ``KeyError: 'serial' (acme/board.py:23, in read_cards)``.
    """
    try:
        error_text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # a plugin's own class
        error_text = type(error).__name__
    code_place = place_of(error)
    return f"{error_text} ({code_place})" if code_place else error_text


def place_of(error: BaseException) -> str:
    """Returns the innermost place (file, line, function) of an exception outside of this platform and of Python.

    Empty if there is none.
    """
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if frame.filename.startswith(_PLATFORM_FOLDERS) or _is_of_python(frame.filename):
            continue
        code_path = Path(frame.filename)
        return f"{code_path.parent.name}/{code_path.name}:{frame.lineno}, in {frame.name}".removeprefix("/")
    return ""


def _is_of_python(filename: str) -> bool:
    if filename.startswith("<"):
        return True
    return filename.startswith(_PYTHON_FOLDER + "/") and "/site-packages/" not in filename
