"""An image of the daemons for the tests, made of this machine's interpreter and environment: nothing is downloaded."""

from __future__ import annotations

import importlib.metadata
import io
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from importlib.util import cache_from_source
from pathlib import Path

from tools.kube.images import pack_image

import ai.backend.common

IMAGE = "registry.test/backendai:1"
_SOURCES = Path(ai.backend.common.__path__[0]).parents[2]
_PACKAGES, _ENTRY = "opt/backend.ai/packages", "usr/local/bin/backend.ai"
_EXTRAS = ("postgres", "redis")
_LEFT_OUT = re.compile(r"/(test|tests|idlelib|tkinter|ensurepip|lib2to3|site-packages|__pycache__|config-[^/]*)(/|$)")
_LIBRARY = re.compile(r"(/\S+) \(0x")
_PROGRAM = """#!{python}
import sys
from ai.backend.cli.main import main
sys.exit(main())
"""


def write_daemon_image(target: Path, name: str = IMAGE) -> None:
    """Writes the image, with ``backend.ai`` on its path and the user 59501."""
    layer = target.with_suffix(".layer")
    prefix, python = Path(sys.base_prefix), Path(sys.base_prefix) / "bin" / f"python{sysconfig.get_python_version()}"
    library = Path(sysconfig.get_path("stdlib"))
    libraries: set[Path] = set()
    with tarfile.open(layer, "w") as tar:
        for folder, mode in (("tmp", 0o1777), ("etc", 0o755), ("var/lib", 0o755), ("run", 0o755), ("usr/bin", 0o755)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        _add_text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\nbackendai:x:59501:59501::/tmp:/bin/sh\n")
        _add_text(tar, "etc/group", "root:x:0:\nbackendai:x:59501:\n")
        _add_text(tar, _ENTRY, _PROGRAM.format(python=python), 0o755)
        for place, source in _files(library, str(library)):
            _add(tar, place, source, libraries)
        for place, source in (*_package_files(), *_files(_SOURCES / "ai", f"/{_PACKAGES}/ai")):
            _add(tar, place, source, libraries)
        for source in (python, Path("/usr/bin/install"), *(prefix / "lib").glob("libpython3*.so*")):
            libraries.add(source)
            _add(tar, str(source), source, libraries)
        _add(tar, "bin/busybox", Path("/bin/busybox"), libraries)
        for source in sorted(_closure(libraries)):
            tar.add(source.resolve(), str(source).lstrip("/"), filter=_as_root)
        for applet in ("bin/sh", "bin/sleep", "usr/bin/env"):
            entry = tarfile.TarInfo(applet)
            entry.type, entry.linkname = tarfile.SYMTYPE, "/bin/busybox"
            tar.addfile(entry)
    path = "PATH=/usr/local/bin:/usr/bin:/bin"
    environment = [path, f"PYTHONPATH=/{_PACKAGES}", "PYTHONDONTWRITEBYTECODE=1", "HOME=/tmp"]
    pack_image(target, name, layer, environment=environment)
    layer.unlink()


def _package_files() -> Iterator[tuple[str, Path]]:
    """Yields the files of the packages that the daemons need, and of those that these need."""
    pending, done = ["backendai", *(f"backendai[{extra}]" for extra in _EXTRAS)], set[str]()
    while pending:
        requirement = pending.pop()
        name, _, extra = requirement.rstrip("]").partition("[")
        key = re.sub(r"[-_.]+", "-", requirement.lower())
        if key in done:
            continue
        done.add(key)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for line in distribution.requires or ():
            wanted, _, marker = line.partition(";")
            is_of_extra = re.search(r"extra == ['\"]([^'\"]+)", marker)
            if is_of_extra is None or is_of_extra.group(1) == extra:
                pending.append(re.split(r"[ <>=!~(]", wanted.strip(), maxsplit=1)[0])
        if not extra:
            for file in distribution.files or ():
                source = Path(str(file.locate()))
                if name == "backendai" and not file.parts[0].endswith(".dist-info"):
                    continue  # of an editable installation; the sources are copied
                if ".." not in file.parts and source.is_file() and not _LEFT_OUT.search(f"/{file}"):
                    yield f"/{_PACKAGES}/{file}", source


def _files(folder: Path, place: str) -> Iterator[tuple[str, Path]]:
    for source in sorted(folder.rglob("*")):
        inner = source.relative_to(folder)
        if source.is_file() and not _LEFT_OUT.search(f"/{inner}"):
            yield f"{place}/{inner}", source


def _add(tar: tarfile.TarFile, place: str, source: Path, libraries: set[Path]) -> None:
    """Adds a file; a module with its bytecode, since a daemon can write none and would compile all at each start."""
    tar.add(source.resolve(), place.lstrip("/"), filter=_as_root)
    if source.suffix == ".py" and (compiled := Path(cache_from_source(str(source.resolve())))).is_file():
        tar.add(compiled, cache_from_source(place).lstrip("/"), filter=_as_root)
    if ".so" in source.name:
        libraries.add(source)


def _closure(programs: Iterable[Path]) -> set[Path]:
    """Returns the libraries of this machine that these need; those of a wheel are beside it, and in the image."""
    done = subprocess.run(["ldd", *map(str, sorted(programs))], capture_output=True, text=True, check=False)
    found_paths = {Path(path) for path in _LIBRARY.findall(done.stdout)}
    return {path for path in found_paths if path.is_file() and str(path).startswith(("/lib", "/usr/lib"))}


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _add_text(tar: tarfile.TarFile, name: str, text: str, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text.encode()), mode
    tar.addfile(entry, io.BytesIO(text.encode()))
