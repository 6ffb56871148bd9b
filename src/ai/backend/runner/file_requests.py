"""Handles requests about files of the home directory: writing, listing, and reading in the background.

Writes and lists are done at once; files are read in pieces.
"""

from __future__ import annotations

from .files import MAX_READ_PATHS, REFUSALS, Home, as_file_error
from .framing import from_base64, to_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List

    from .framing import Outbox

    Message = Dict[str, Any]
_MAX_DOWNLOADS = 16


class FileRequests:
    """Handles the agent's requests to write, list and read files of the home.

    A handler raises one of `files.REFUSALS` for a rejected request.
    """

    def __init__(self, home: str, outbox: Outbox) -> None:
        self._home = Home(home)
        self._outbox = outbox
        self._downloads: List[Iterator[None]] = []

    @property
    def is_reading(self) -> bool:
        return bool(self._downloads)

    def write(self, message: Message) -> None:
        content, offset, is_last = from_base64(message["data"]), message.get("offset", 0), message.get("last", True)
        write_result = self._home.write(message["path"], content, offset, bool(is_last), message.get("mode"))
        self._outbox.reply(message, write_result)

    def list(self, message: Message) -> None:
        self._outbox.reply(message, self._home.list(message.get("path") or "."))

    def read(self, message: Message) -> None:
        paths = message["paths"]
        if not isinstance(paths, list) or not 1 <= len(paths) <= MAX_READ_PATHS:
            raise ValueError(f"paths is a list of 1 to {MAX_READ_PATHS}")
        if len(self._downloads) >= _MAX_DOWNLOADS:
            raise ValueError("too many downloads at once")
        self._downloads.append(self._send_chunks(message, paths))

    def advance(self) -> None:
        """Sends the next chunk of a download; the downloads take turns."""
        download = self._downloads.pop(0)
        try:
            next(download)
        except StopIteration:
            return
        self._downloads.append(download)

    def close(self) -> None:
        self._home.close()

    def _send_chunks(self, message: Message, paths: List[str]) -> Iterator[None]:
        try:
            for index, path in enumerate(paths):
                chunk_header = {"t": "chunk", "req": message["req"], "index": index, "name": path}
                for archive_bytes in self._home.read(path, message["max_bytes"]):
                    self._outbox.send({**chunk_header, "data": to_base64(archive_bytes), "eof": False})
                    yield
                self._outbox.send({**chunk_header, "data": "", "eof": True})
        except REFUSALS as e:
            error = as_file_error(e)
            self._outbox.refuse(message, error.kind, str(error))
        else:
            self._outbox.reply(message, {"count": len(paths)})
