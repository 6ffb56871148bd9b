"""Console items of a run (spec 03-08, "Handling Console Output") on a terminal."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import unquote_to_bytes

_SUFFIXES = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/svg+xml": ".svg",
    "text/html": ".html",
    "text/plain": ".txt",
    "application/json": ".json",
}


def decode_media(mime: str, content: str) -> bytes:
    """The bytes of a media item: a data URI for binary types, plain text otherwise."""
    if not content.startswith("data:"):
        return content.encode()
    head, _, body = content.partition(",")
    return base64.b64decode(body) if head.endswith(";base64") else unquote_to_bytes(body)


class Renderer:
    """Writes console items: text to stdout and stderr as it was, media and html into files that it names.

    ``prefix`` starts every line; it is what tells parallel runs apart.
    """

    def __init__(
        self, *, prefix: str = "", out: TextIO | None = None, err: TextIO | None = None, folder: Path | None = None
    ) -> None:
        self._prefix = prefix
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._folder = folder or Path.cwd()
        self._rest = {"stdout": "", "stderr": ""}
        self._media = 0

    def show(self, items: Sequence[Sequence[Any]]) -> None:
        for kind, data in items:
            if kind in ("stdout", "stderr"):
                self._text(kind, str(data))
            elif kind == "media":
                self._save(str(data[0]), str(data[1]))
            elif kind == "html":
                self._save("text/html", str(data))
            elif kind == "log" and isinstance(data, Sequence):
                self._text("stderr", " ".join(str(part) for part in data) + "\n")
            else:
                self._text("stderr", f"[{kind}] {data}\n")
        self._out.flush()
        self._err.flush()

    def finish(self) -> None:
        """Write what still waits for the end of its line."""
        for kind, rest in self._rest.items():
            if rest:
                self._stream(kind).write(f"{self._prefix}{rest}\n")
                self._rest[kind] = ""
        self._out.flush()
        self._err.flush()

    def _stream(self, kind: str) -> TextIO:
        return self._out if kind == "stdout" else self._err

    def _text(self, kind: str, text: str) -> None:
        if not self._prefix:
            self._stream(kind).write(text)
            return
        *whole, self._rest[kind] = (self._rest[kind] + text).split("\n")
        for line in whole:
            self._stream(kind).write(f"{self._prefix}{line}\n")

    def _save(self, mime: str, content: str) -> None:
        suffix = _SUFFIXES.get(mime, ".bin")
        while True:
            self._media += 1
            path = self._folder / f"output-{self._media}{suffix}"
            try:
                with path.open("xb") as file:
                    file.write(decode_media(mime, content))
            except FileExistsError:
                continue
            except (OSError, ValueError) as error:
                self._text("stderr", f"[{mime}: cannot be saved: {error}]\n")
                return
            self._text("stderr", f"[{mime}: saved as {path.name}]\n")
            return
