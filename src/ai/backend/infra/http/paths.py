"""Translates former spellings of the API's paths, and parses API versions.

Source: spec 03-07 ("API Versioning"), 03-08 (``/session/create``, ``/kernel/...``, ``/stream/kernel/...``). Only
routing sees the new spelling: a signature is checked against the target as it came.
"""

from __future__ import annotations

import re
from functools import lru_cache

API_VERSION = "v7.20230615"
"""The version that ``GET /`` reports; a higher one makes the published 23.9 client warn on standard output (wire
contract 1.3)."""

MINOR_RELEASES = {
    2: "20170315",
    3: "20170615",
    4: "20190615",
    5: "20191215",
    6: "20220615",
    7: "20230615",
}
"""The last minor release of each major version of the API."""

_VERSION_PREFIX = re.compile(r"/v(\d{1,4})(?=/|$)")
_VERSION_HEADER = re.compile(r"v(\d{1,4})\.(\d{8})")
_FORMER_PREFIXES = (
    ("/kernel/", "/session/"),
    ("/stream/kernel/", "/stream/session/"),
)
_FORMER_PATHS = {
    "/kernel": "/session",
    "/session/create": "/session",
    "/kernel/create": "/session",
    "/session/_/create": "/session",
    "/stream/session/_/events": "/events/session",
    "/stream/kernel/_/events": "/events/session",
    "/admin/graphql": "/admin/gql",
}


def split_target(raw_target: str) -> tuple[str, str]:
    """Splits a request target without its authority into path and query, both still percent-encoded."""
    path, _, query = raw_target.partition("?")
    if not path.startswith("/"):
        _, _, without_scheme = path.partition("://")
        separator = without_scheme.find("/")
        path = without_scheme[separator:] if separator >= 0 else "/"
    return path.partition("#")[0], query


@lru_cache(maxsize=64)  # enough for those that name no session
def modern_path(path: str) -> str:
    """Returns the path under which a route is registered, given the path in any former spelling.

    ``/v5/kernel/abc`` becomes ``/session/abc``; ``/v5`` stays, it requests the version. An unknown major version stays
    too.
    """
    if len(path) > 1 and path.endswith("/"):
        path = path.rstrip("/") or "/"
    match = _VERSION_PREFIX.match(path)
    if match and match.end() < len(path) and int(match[1]) in MINOR_RELEASES:
        path = path[match.end() :]
    if path in _FORMER_PATHS:
        return _FORMER_PATHS[path]
    for former_prefix, modern_prefix in _FORMER_PREFIXES:
        if path.startswith(former_prefix):
            return modern_prefix + path[len(former_prefix) :]
    return path


def parse_version(header: str) -> tuple[int, str] | None:
    """Parses an ``X-BackendAI-Version`` header as (major, minor date); None if it is malformed."""
    match = _VERSION_HEADER.fullmatch(header)
    return (int(match[1]), match[2]) if match else None
