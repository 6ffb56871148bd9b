"""Which image a user means."""

from __future__ import annotations

import pytest

from ai.backend.common.errors import ImageNotFound
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.reports import ImageReport
from ai.backend.manager.images.model import ImageAlias
from ai.backend.manager.images.service import merge_images, resolve_image
from tests.contract.store.builders import make_agent


def report(name: str, *aliases: str, architecture: str = "x86_64") -> ImageReport:
    return ImageReport(name=name, architecture=architecture, aliases=list(aliases))


AGENTS = [
    make_agent("a", images=(report("host/python:3.11", "python"), report("lab/torch:1.0"), report("lab/torch:latest"))),
    make_agent("b", images=(report("host/python:3.11", "py"), report("host/python:3.11", architecture="arm64"))),
    make_agent("gone", status=AgentStatus.TERMINATED, images=(report("old:1"),)),
]


def test_agents_are_merged() -> None:
    images = {(i.name, i.architecture): i for i in merge_images(AGENTS)}
    assert set(images) == {
        ("host/python:3.11", "x86_64"),
        ("host/python:3.11", "aarch64"),
        ("lab/torch:1.0", "x86_64"),
        ("lab/torch:latest", "x86_64"),
    }
    python = images["host/python:3.11", "x86_64"]
    assert (python.aliases, python.agents) == (("python", "py"), ("a", "b"))


@pytest.mark.parametrize(
    ("wanted", "architecture", "name"),
    [
        ("python", None, "host/python:3.11"),
        ("py", "amd64", "host/python:3.11"),
        ("host/python:3.11", "aarch64", "host/python:3.11"),
        ("host/python", None, "host/python:3.11"),
        ("lab/torch", None, "lab/torch:latest"),
    ],
)
def test_names_aliases_and_tags_resolve(wanted: str, architecture: str | None, name: str) -> None:
    assert resolve_image(merge_images(AGENTS), wanted, architecture).name == name


@pytest.mark.parametrize(
    ("alias", "reference", "architecture", "name"),
    [
        (ImageAlias(alias="python", image="lab/torch:1.0"), "python", None, "lab/torch:1.0"),
        (ImageAlias(alias="python", image="lab/torch:1.0", architecture="aarch64"), "python", None, "host/python:3.11"),
        (ImageAlias(alias="python", image="gone:1"), "python", None, "host/python:3.11"),
    ],
)
def test_an_administrators_alias_is_preferred(
    alias: ImageAlias, reference: str, architecture: str | None, name: str
) -> None:
    """If the image of the alias exists, an agent's alias of the same name no longer names another image."""
    images = merge_images(AGENTS, aliases=[alias])
    assert resolve_image(images, reference, architecture).name == name
    assert [image.name for image in images if "python" in image.aliases] == [name]


def test_what_is_not_there_is_explained() -> None:
    with pytest.raises(ImageNotFound, match=r"There are: host/python:3\.11") as caught:
        resolve_image(merge_images(AGENTS), "perl", None)
    assert "python" in caught.value.data["available"]
    with pytest.raises(ImageNotFound, match="x86_64 only, not for riscv64"):
        resolve_image(merge_images(AGENTS), "python", "riscv64")
    with pytest.raises(ImageNotFound, match="no agent has reported any"):
        resolve_image([], "python", None)


@pytest.mark.parametrize(
    ("reference", "closest"),
    [
        ("pyhton", "python"),
        ("Python", "python"),
        ("pytohn:3.11", "host/python:3.11"),
        ("torhc:latest", "lab/torch:latest"),
        ("lab/torch:1.1", "lab/torch:1.0"),
    ],
)
def test_the_closest_names_come_first(reference: str, closest: str) -> None:
    others = [report(f"registry.example/lab/other-{number}:1") for number in range(200)]
    images = merge_images([*AGENTS, make_agent("c", images=tuple(others))])
    with pytest.raises(ImageNotFound, match=rf"The closest names are: {closest}") as caught:
        resolve_image(images, reference, None)
    assert "other-" not in str(caught.value)
    assert (caught.value.data["available"][0], len(caught.value.data["available"])) == (closest, 100)


def test_of_many_other_names_a_few_are_shown() -> None:
    images = merge_images([make_agent("c", images=tuple(report(f"lab/other-{n}:1") for n in range(200)))])
    with pytest.raises(ImageNotFound, match=r"There are 200, such as: lab/other-0:1, .*") as caught:
        resolve_image(images, "x" * 100_000, None)
    assert len(str(caught.value)) < 500
