"""Where a browser goes after a sign-in: to a path of this site, whatever a link says."""

from __future__ import annotations

import pytest

from ai.backend.web.login.sso_api import same_origin_path


@pytest.mark.parametrize("path", ["/", "/sessions", "/sessions?status=RUNNING&x=%2F%2F", "/a/b#c", "/한글", "/a//b"])
def test_paths_of_this_site_stay(path: str) -> None:
    assert same_origin_path(path) == path


@pytest.mark.parametrize(
    "path",
    ["https://evil.example", "//evil.example", "/\\evil.example", "\\\\evil.example", "javascript:alert(1)", "", "x",
     "/\t/evil.example", "/\n/evil.example", "/\0", "/" + "x" * 2_000, " //evil.example", "/ /evil.example"],
)  # fmt: skip
def test_whatever_else_is_the_first_page(path: str) -> None:
    assert same_origin_path(path) == "/"
