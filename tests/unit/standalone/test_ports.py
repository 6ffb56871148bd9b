"""The port of the API that ``up`` chooses."""

from __future__ import annotations

import socket
from pathlib import Path

from ai.backend.standalone.cluster import prepare
from ai.backend.standalone.layout import Layout
from ai.backend.standalone.options import DEFAULT_PORT, UpOptions


def test_port_zero_is_any_free_port_although_the_default_is_taken(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", DEFAULT_PORT))
            other.listen()
        except OSError:
            pass  # another cluster of this machine has it
        cluster, sockets = prepare(layout, UpOptions(port=0, mock="none"))
    for each in sockets:
        each.close()
    assert cluster.port not in (0, DEFAULT_PORT)
