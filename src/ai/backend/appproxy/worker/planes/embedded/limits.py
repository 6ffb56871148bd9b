"""Defines the limits of the embedded data plane."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the limits of the embedded plane. Sizes are in bytes, times in seconds.

    No time limits a whole response: streams last as long as bytes come.

    Attributes:
        head_bytes: of a request line with its header fields.
        header_fields: header fields of one request.
        body_bytes: of a request body; zero is any size.
        head_s: from the first byte of a head to its last one, and from the connection to its first request.
        keep_alive_s: between two requests of a connection.
        body_gap_s: between two pieces of a request body.
        connect_s: for the connection to an app.
        first_byte_s: from the request to the first byte of its response.
        stream_gap_s: between two pieces of a response.
        unread_s: for which a client may leave a response unread.
        tunnel_gap_s: without a byte in either direction of a WebSocket or TCP connection.
        pool_idle_s: for which an unused connection to an app is kept; servers close theirs after 5 s and more.
        pool_size: unused connections that are kept for one route.
        model_body_bytes: of a request to a model, which is read whole before its replica is picked.
        model_bodies_bytes: of all such requests that are open.
        circuit_connections: requests and connections that one circuit may have open.
    """

    head_bytes: int = 64 * 1024
    header_fields: int = 128
    body_bytes: int = 0
    head_s: float = 15.0
    keep_alive_s: float = 75.0
    body_gap_s: float = 60.0
    connect_s: float = 10.0
    first_byte_s: float = 600.0
    stream_gap_s: float = 3600.0
    unread_s: float = 60.0
    tunnel_gap_s: float = 86_400.0
    pool_idle_s: float = 4.0
    pool_size: int = 128
    circuit_connections: int = 10_000
    model_body_bytes: int = 32 << 20
    model_bodies_bytes: int = 512 << 20
