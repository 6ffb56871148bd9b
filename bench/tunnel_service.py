"""A TCP service on 127.0.0.1, on the port that it is told or, for 0, on one that it prints; by TLS with a certificate
and its key.

The first line of a connection says what is wanted: ``give N`` or ``take N`` bytes, or ``echo 0``.
"""

import socketserver
import ssl
import sys
import threading  # noqa: F401  # the session serves in a thread

PIECE = 256 * 1024


class Service(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.setsockopt(6, 1, 1)
        line = b""
        while not line.endswith(b"\n"):
            line += self.request.recv(1)
        what, size = line.split()
        remaining = int(size)
        if what == b"give":
            piece = bytes(PIECE)
            while remaining > 0:
                self.request.sendall(piece[:remaining])
                remaining -= len(piece)
        elif what == b"take":
            room = bytearray(PIECE)
            while remaining > 0:
                remaining -= self.request.recv_into(room) or remaining
            self.request.sendall(b"x")
        else:
            while data := self.request.recv(65536):
                self.request.sendall(data)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


server = Server(("127.0.0.1", int(sys.argv[1])), Service)
if len(sys.argv) > 3:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[2:4])
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
