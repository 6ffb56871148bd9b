"""Handing a socket to the agent, which connects it itself: nothing of a tunnel passes through a relay."""

from __future__ import annotations

import array
import socket

from .framing import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .peers import Peer


def hand_over_socket(peer: Peer) -> None:
    """A new socket of this process's network, with the answer. Failures are told; a peer that does not read is left."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
            rights = array.array("i", [made.fileno()])
            peer.sock.sendmsg([encode({"t": "socket"})], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except OSError as error:
        peer.send(encode({"t": "refused", "reason": str(error)}))
