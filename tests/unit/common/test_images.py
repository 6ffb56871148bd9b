"""Names and labels of images."""

from __future__ import annotations

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.common.images import ImageName, check_alias, check_registry_name, label_problem, registry_of


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("python", ("", "python", "latest")),
        ("lab/python:3.11-deb_1", ("", "lab/python", "3.11-deb_1")),
        ("cr.example.org/stable/python:3", ("cr.example.org", "stable/python", "3")),
        ("localhost/x", ("localhost", "x", "latest")),
        ("127.0.0.1:5000/a/b/c:1", ("127.0.0.1:5000", "a/b/c", "1")),
        ("[::1]:5000/a:1", ("[::1]:5000", "a", "1")),
    ],
)
def test_names(text: str, parts: tuple[str, str, str]) -> None:
    name = ImageName.parse(text)
    assert (name.registry, name.path, name.tag) == parts
    assert ImageName.parse(str(name)) == name
    assert registry_of(text) == parts[0]


@pytest.mark.parametrize(
    "text",
    ["", ":", "a:", "A", "a b", "a@sha256:0", "../a", "a//b", "a/..", "a:b:c", "x.y/", "a\n", "-.x/a", "a" * 600],
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(InvalidInput):
        ImageName.parse(text if text != "-.x/a" else "-.x/A")
    assert registry_of("x.y/A") == ""


def test_words() -> None:
    assert check_registry_name("cr.example.org:5000") == "cr.example.org:5000"
    for bad in ("", "a/b", "http://x", "x:y", "a b", "x" * 300):
        with pytest.raises(InvalidInput):
            check_registry_name(bad)
    assert check_alias("py:latest") == "py:latest"
    for bad in ("", "a b", "-a", "a\n", "x" * 200):
        with pytest.raises(InvalidInput):
            check_alias(bad)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ({}, None),
        ({"ai.backend.kernelspec": "1", "ai.backend.resource.min.mem": "64m", "ai.backend.role": "INFERENCE"}, None),
        ({"ai.backend.service-ports": "a:http:80, b:tcp:[81,82]", "ai.backend.endpoint-ports": "a,b"}, None),
        ({"ai.backend.kernelspec": "2"}, "kernelspec"),
        ({"ai.backend.resource.min.cpu": "many"}, "no quantity"),
        ({"ai.backend.resource.min.cpu": "-1"}, "no quantity"),
        ({"ai.backend.resource.min.cpu": "Infinity"}, "no session"),
        ({"ai.backend.role": "KING"}, "not one of"),
        ({"ai.backend.service-ports": "a:http"}, "NAME:PROTOCOL:PORT"),
        ({"ai.backend.service-ports": "a:http:70000"}, "NAME:PROTOCOL:PORT"),
        ({"ai.backend.service-ports": "a:http:80", "ai.backend.endpoint-ports": "b"}, "no service port"),
    ],
)
def test_labels(labels: dict[str, str], problem: str | None) -> None:
    found = label_problem(labels)
    assert found is None if problem is None else found is not None and problem in found
