"""Handles requests about files of the home: writes and lists at once, reads in pieces in the background."""

from __future__ import annotations

from .files import MAX_READ_PATHS, REFUSALS, Home, as_file_error
from .framing import from_base64, to_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List

    from .framing import Outbox

    Message = Dict[str, Any]
_MAX_READS = 16


class FileRequests:
    """Handlers of messages; each raises one of `files.REFUSALS` for a request that it rejects at once."""

    def __init__(self, home: str, outbox: Outbox) -> None:
        self._home = Home(home)
        self._outbox = outbox
        self._reads: List[Iterator[None]] = []

    @property
    def is_reading(self) -> bool:
        return bool(self._reads)

    def write(self, message: Message) -> None:
        data, offset, is_last = from_base64(message["data"]), message.get("offset", 0), message.get("last", True)
        written = self._home.write(message["path"], data, offset, bool(is_last), message.get("mode"))
        self._outbox.reply(message, written)

    def list(self, message: Message) -> None:
        self._outbox.reply(message, self._home.list(message.get("path") or "."))

    def read(self, message: Message) -> None:
        paths = message["paths"]
        if not isinstance(paths, list) or not 1 <= len(paths) <= MAX_READ_PATHS:
            raise ValueError(f"paths is a list of 1 to {MAX_READ_PATHS}")
        if len(self._reads) >= _MAX_READS:
            raise ValueError("too many downloads at once")
        self._reads.append(self._read(message, paths))

    def advance(self) -> None:
        """Sends one piece of one of the files that are read, in turn."""
        read = self._reads.pop(0)
        try:
            next(read)
        except StopIteration:
            return
        self._reads.append(read)

    def close(self) -> None:
        self._home.close()

    def _read(self, message: Message, paths: List[str]) -> Iterator[None]:
        try:
            for index, path in enumerate(paths):
                head = {"t": "chunk", "req": message["req"], "index": index, "name": path}
                for data in self._home.read(path, message["max_bytes"]):
                    self._outbox.send({**head, "data": to_base64(data), "eof": False})
                    yield
                self._outbox.send({**head, "data": "", "eof": True})
        except REFUSALS as e:
            error = as_file_error(e)
            self._outbox.refuse(message, error.kind, str(error))
        else:
            self._outbox.reply(message, {"count": len(paths)})
