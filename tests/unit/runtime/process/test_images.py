"""Where JupyterLab is found for the interpreters of a host."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from ai.backend.common.images import ImageName
from ai.backend.runtime.process import images

MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"


def environment(folder: Path, *packages: str, python: str | None = None) -> Path:
    """A virtual environment, as far as it is looked at."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(python or images.own_python().executable)
    (folder / "bin" / "jupyter-lab").write_text("")
    for package in packages:
        (folder / "lib" / f"python{MINOR}" / "site-packages" / package).mkdir(parents=True)
    return folder


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(images, "_HIDDEN_PREFIXES", ("/nowhere/",))
    monkeypatch.setattr(images, "_has_jupyterlab", lambda python: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "executable", str(environment(tmp_path / "none") / "bin" / "python"))


def test_the_names_of_the_manual_are_aliases_of_host_images() -> None:
    by_alias = {alias: image for image in images.host_images() for alias in image.aliases}
    assert by_alias["python:3.6-ubuntu18.04"].interpreter == images.own_python().executable
    assert by_alias["lablup/python:3.6-ubuntu18.04"] is by_alias["python"]
    assert all(ImageName.parse(alias) for alias in by_alias)


def own() -> images.ProcessImage:
    return images.host_python_image(images.own_python(), "python", ())


def test_beside_us(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert own().labels == {"ai.backend.service-ports": "http:http:8000"}
    place = environment(tmp_path / "ours", "jupyterlab", "ipykernel")
    monkeypatch.setattr(sys, "executable", str(place / "bin" / "python"))
    assert own().labels == {
        "ai.backend.service-ports": "http:http:8000,jupyterlab:http:8090",
        "ai.backend.service-path.jupyterlab": str(place / "bin" / "python"),
    }
    assert str(place) in own().prefixes
    monkeypatch.setattr(images, "_HIDDEN_PREFIXES", (f"{tmp_path}/",))
    assert "jupyterlab" not in own().labels["ai.backend.service-ports"]


def test_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = environment(tmp_path / "tools", "jupyterlab", "ipykernel")
    monkeypatch.setattr(shutil, "which", lambda name: str(place / "bin" / name))
    assert own().labels["ai.backend.service-path.jupyterlab"] == str(place / "bin" / "python")


@pytest.mark.parametrize("packages", [(), ("jupyterlab",), ("ipykernel",)])
def test_both_packages_are_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packages: tuple[str, ...]) -> None:
    place = environment(tmp_path / "half", *packages)
    monkeypatch.setattr(sys, "executable", str(place / "bin" / "python"))
    assert "jupyterlab" not in own().labels["ai.backend.service-ports"]


def test_that_of_another_interpreter_is_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("")
    place = environment(tmp_path / "theirs", "jupyterlab", "ipykernel", python=os.fspath(other))
    monkeypatch.setattr(shutil, "which", lambda name: str(place / "bin" / name))
    assert "jupyterlab" not in own().labels["ai.backend.service-ports"]


def test_in_the_interpreter_itself_nothing_else_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_has_jupyterlab", lambda python: True)
    assert own().labels == {"ai.backend.service-ports": "http:http:8000,jupyterlab:http:8090"}
    assert own().prefixes == images.own_python().prefixes
