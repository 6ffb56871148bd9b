"""Prints the console items of a run (spec 03-08, "Handling Console Output")."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from pathlib import Path

_SUFFIXES_BY_MIME = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/svg+xml": ".svg",
    "text/html": ".html",
    "text/plain": ".txt",
    "application/json": ".json",
}


def decode_media(mime: str, content: str) -> bytes:
    """Returns the bytes of a media item: a data URI for binary types, plain text otherwise."""
    if not content.startswith("data:"):
        return content.encode()
    uri_head, _, uri_data = content.partition(",")
    return base64.b64decode(uri_data) if uri_head.endswith(";base64") else unquote_to_bytes(uri_data)


class Renderer:
    """Writes text of the user's program to stdout and stderr unchanged, and media and HTML to new files.

    ``prefix`` starts every line, so that the lines of parallel runs can be told apart.
    """

    def __init__(
        self, *, prefix: str = "", out: TextIO | None = None, err: TextIO | None = None, folder: Path | None = None
    ) -> None:
        self._prefix = prefix
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._folder = folder
        self._unfinished = {"stdout": "", "stderr": ""}
        self._media = 0

    def show(self, items: Sequence[Sequence[Any]]) -> None:
        for item_kind, item_content in items:
            if item_kind in ("stdout", "stderr"):
                self._write_text(item_kind, str(item_content))
            elif item_kind == "media":
                self._save_media(str(item_content[0]), str(item_content[1]))
            elif item_kind == "html":
                self._save_media("text/html", str(item_content))
            elif item_kind == "log" and isinstance(item_content, Sequence):
                self._write_text("stderr", " ".join(str(log_part) for log_part in item_content) + "\n")
            else:
                self._write_text("stderr", f"[{item_kind}] {item_content}\n")
        self._out.flush()
        self._err.flush()

    def finish(self) -> None:
        """Writes the lines that have not ended yet."""
        for kind, line in self._unfinished.items():
            if line:
                self._stream(kind).write(f"{self._prefix}{line}\n")
                self._unfinished[kind] = ""
        self._out.flush()
        self._err.flush()

    def _stream(self, kind: str) -> TextIO:
        return self._out if kind == "stdout" else self._err

    def _write_text(self, kind: str, text: str) -> None:
        if not self._prefix:
            self._stream(kind).write(text)
            return
        *ended_lines, self._unfinished[kind] = (self._unfinished[kind] + text).split("\n")
        for line in ended_lines:
            self._stream(kind).write(f"{self._prefix}{line}\n")

    def _save_media(self, mime: str, content: str) -> None:
        from pathlib import Path

        suffix = _SUFFIXES_BY_MIME.get(mime, ".bin")
        while True:
            self._media += 1
            path = (self._folder or Path.cwd()) / f"output-{self._media}{suffix}"
            try:
                with path.open("xb") as file:
                    file.write(decode_media(mime, content))
            except FileExistsError:
                continue
            except (OSError, ValueError) as error:
                self._write_text("stderr", f"[{mime}: cannot be saved: {error}]\n")
                return
            self._write_text("stderr", f"[{mime}: saved as {path.name}]\n")
            return
