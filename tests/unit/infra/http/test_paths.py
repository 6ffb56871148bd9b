from __future__ import annotations

import re

import pytest

from ai.backend.infra.http.paths import API_VERSION, MINOR_RELEASES, modern_path, parse_version, split_target


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/session", "/session"),
        ("/session/", "/session"),
        ("/session/create", "/session"),
        ("/kernel/create", "/session"),
        ("/v2/kernel/create", "/session"),
        ("/kernel", "/session"),
        ("/kernel/abcd", "/session/abcd"),
        ("/v4/session/abcd/upload", "/session/abcd/upload"),
        ("/stream/kernel/abcd/pty", "/stream/session/abcd/pty"),
        ("/stream/kernel/_/events", "/events/session"),
        ("/admin/graphql", "/admin/gql"),
        ("/v7", "/v7"),
        ("/v7/", "/v7"),
        ("/v99/session", "/v99/session"),
        ("/v77x/session", "/v77x/session"),
        ("/", "/"),
        ("//", "/"),
        ("/session/v7", "/session/v7"),
        ("/session/a%2Fb", "/session/a%2Fb"),
    ],
)
def test_old_spellings(old: str, new: str) -> None:
    assert modern_path(old) == new


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("/a?b=c?d", ("/a", "b=c?d")),
        ("/a", ("/a", "")),
        ("http://host:80/a/b?x", ("/a/b", "x")),
        ("http://host", ("/", "")),
        ("*", ("/", "")),
    ],
)
def test_targets(target: str, parts: tuple[str, str]) -> None:
    assert split_target(target) == parts


def test_versions() -> None:
    assert parse_version(API_VERSION) == (7, MINOR_RELEASES[7])
    assert re.fullmatch(r"v\d+\.\d{8}", API_VERSION)
    for text in ("", "7.20230615", "v7", "v7.2023", "v7.20230615x"):
        assert parse_version(text) is None
