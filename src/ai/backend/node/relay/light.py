"""Loads the light modules of the runner for a relay that runs as a process of its own.

See `runner/light.py`. A shim uses the ordinary modules, because the process that it was forked from has loaded them.
"""

from __future__ import annotations

import _socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections import deque
    from socket import socket as Socket  # noqa: N812  # the name of a class, as in the container's branch
    from typing import Any, Callable

    dumps: Callable[..., str]
    loads: Callable[[bytes | bytearray], Any]
else:
    try:
        from _collections import deque

        _runner = __import__("_backendai_runner.light", fromlist=["loads"])
        dumps, loads, signal = _runner.dumps, _runner.loads, _runner.signal

        class Socket(_socket.socket):
            """Adds ``accept`` to the socket class of ``_socket``, with the behaviour of :mod:`socket`."""

            def accept(self) -> tuple[Socket, Any]:
                fd, address = self._accept()
                return Socket(fileno=fd), address

    except ImportError:
        import json
        import signal
        from collections import deque
        from json import loads
        from socket import socket as Socket  # noqa: N812  # the name of a class, as in the other branch

        def dumps(value: Any) -> str:
            return json.dumps(value, separators=(",", ":"))


__all__ = ["Socket", "deque", "dumps", "loads", "signal"]
