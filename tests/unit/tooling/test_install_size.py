"""The base install stays small: all that an install without extras has, by the metadata of this environment."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

MAX_BYTES = 110 * 10**6
MAX_PACKAGES = 50
SOURCE = Path(__file__).parents[3] / "src"


def _closure(name: str) -> set[str]:
    """The distributions that an install of this one without extras has, itself included."""
    packages: set[str] = set()
    pending = [(name, "")]
    visited = set(pending)
    while pending:
        package, extra = pending.pop()
        packages.add(package)
        for line in distribution(package).requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                needed = requirement.name.lower().replace("_", "-")
                new = {(needed, one) for one in ("", *requirement.extras)} - visited
                visited |= new
                pending += new
    return packages


def _bytes_of(package: str) -> int:
    """What the package installs, without bytecode."""
    return sum(file.size or 0 for file in distribution(package).files or () if file.suffix != ".pyc")


def _own_bytes() -> int:
    """What our wheel installs: this environment has it as a link to the source."""
    return sum(path.stat().st_size for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc")


def test_the_base_install_is_small() -> None:
    packages = _closure("backendai")
    sizes = {package: _bytes_of(package) for package in packages}
    assert {"cryptography", "sqlalchemy", "greenlet"} <= packages, "the closure follows requirements and their extras"
    assert sizes["cryptography"] > 5 * 10**6, "sizes are those of installed files"
    sizes["backendai"] = _own_bytes()
    total = sum(sizes.values())
    report = ", ".join(f"{name} {sizes[name] / 1e6:.1f}" for name in sorted(sizes, key=sizes.__getitem__, reverse=True))
    assert len(packages) <= MAX_PACKAGES, report
    assert total <= MAX_BYTES, f"{total / 1e6:.1f} MB: {report}"
