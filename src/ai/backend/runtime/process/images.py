"""Images of this runtime: interpreters of the host, and imported root file systems."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ai.backend.plugin.runtime import RuntimeImage

RUNTIME_PATHS = {"bash": "/bin/bash", "c": "/usr/bin/gcc"}
FEATURES = "query batch uid-match user-input"
MIN_PYTHON = (3, 8)
_HIDDEN = ("/tmp/", "/var/tmp/", "/dev/", "/home/work/")
"""Where sessions see something of their own."""
_ASK_VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3], sys.prefix, sys.base_exec_prefix, sep='\\n')"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessImage:
    """An image as this runtime starts it.

    Attributes:
        runtime: the runner's runtime (python, bash, c).
        interpreter: the Python that runs the runner, as a path inside the sandbox.
        prefixes: host directories that the interpreter needs beyond the system's.
        rootfs: the imported root directory; None for a host image.
    """

    name: str
    runtime: str
    version: str
    interpreter: str
    runtime_path: str
    prefixes: tuple[str, ...] = ()
    rootfs: Path | None = None
    digest: str = ""
    size_bytes: int = 0
    aliases: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)

    def public(self) -> RuntimeImage:
        return RuntimeImage(
            name=self.name,
            architecture=platform.machine(),
            digest=self.digest,
            size_bytes=self.size_bytes,
            labels={**standard_labels(self.runtime, self.runtime_path), **self.labels},
            aliases=self.aliases,
        )


def standard_labels(runtime: str, runtime_path: str) -> dict[str, str]:
    """Labels of the spec (03-05, "Metadata Labels")."""
    return {
        "ai.backend.kernelspec": "1",
        "ai.backend.runtime-type": runtime,
        "ai.backend.runtime-path": runtime_path,
        "ai.backend.features": FEATURES,
        "ai.backend.role": "COMPUTE",
        "ai.backend.base-distro": "host",
        "ai.backend.resource.min.cpu": "1",
        "ai.backend.resource.min.mem": "64m",
        "ai.backend.envs.corecount": "OPENBLAS_NUM_THREADS,OMP_NUM_THREADS,NPROC",
    }


@dataclass(frozen=True, slots=True)
class _Python:
    executable: str
    version: str
    prefixes: tuple[str, ...]

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])


def _own_python() -> _Python:
    """The interpreter below our virtual environment: that is the one whose files sessions may see."""
    base = os.path.realpath(sys.base_prefix)
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    executable = next(
        (str(path) for path in (Path(base, "bin", name), Path(base, "bin", "python3")) if path.exists()),
        os.path.realpath(sys.executable),
    )
    version = ".".join(map(str, sys.version_info[:3]))
    return _Python(os.path.realpath(executable), version, _outside_usr((base, os.path.realpath(sys.base_exec_prefix))))


def _ask(executable: Path) -> _Python | None:
    """What that interpreter says of itself; None if it does not work or is too old."""
    try:
        done = subprocess.run(
            [str(executable), "-I", "-S", "-c", _ASK_VERSION], capture_output=True, text=True, timeout=10, check=True
        )
        version, *prefixes = done.stdout.split("\n")[:3]
        if tuple(map(int, version.split(".")[:2])) < MIN_PYTHON:
            return None
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return _Python(os.path.realpath(executable), version, _outside_usr(map(os.path.realpath, prefixes)))


def _outside_usr(prefixes: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({prefix for prefix in prefixes if prefix != "/usr" and not prefix.startswith("/usr/")}))


def _suffix(python: _Python, count: int) -> str:
    """Tells two interpreters of one version apart."""
    return "system" if python.executable.startswith("/usr/bin/") else str(count)


def _has_jupyterlab(python: _Python) -> bool:
    library = Path(python.executable).parents[1]
    folders = (
        library / "lib" / f"python{python.minor}" / "site-packages",
        library / "lib" / "python3" / "dist-packages",
        library / "local" / "lib" / f"python{python.minor}" / "dist-packages",
    )
    return any((folder / "jupyterlab").is_dir() for folder in folders)


def _jupyterlab_beside(python: _Python) -> tuple[str, str] | None:
    """Returns the interpreter and the path of a virtual environment that has JupyterLab for that Python."""
    candidates = [Path(sys.executable)]
    if (program := shutil.which("jupyter-lab")) is not None:
        candidates.append(Path(program).resolve().with_name("python"))
    for candidate in candidates:
        environment = candidate.absolute().parents[1]
        packages = environment / "lib" / f"python{python.minor}" / "site-packages"
        if str(environment).startswith(_HIDDEN):
            continue
        if all((packages / name).is_dir() for name in ("jupyterlab", "ipykernel")) and (
            os.path.realpath(candidate) == python.executable
        ):
            return str(environment / "bin" / candidate.name), str(environment)
    return None


def _host_python(python: _Python, name: str, aliases: tuple[str, ...]) -> ProcessImage:
    """With a web server of files, which every Python has, and JupyterLab where it is installed in it or beside it."""
    services, labels, prefixes = ["http:http:8000"], {}, python.prefixes
    beside = None if _has_jupyterlab(python) else _jupyterlab_beside(python)
    if beside is not None:
        labels["ai.backend.service-path.jupyterlab"], environment = beside
        prefixes = (*prefixes, *(found for found in _outside_usr([environment]) if found not in prefixes))
    if beside is not None or _has_jupyterlab(python):
        services.append("jupyterlab:http:8090")
    return ProcessImage(
        name=f"host/{name}",
        runtime="python",
        version=python.version,
        interpreter=python.executable,
        runtime_path=python.executable,
        prefixes=prefixes,
        labels={"ai.backend.service-ports": ",".join(services), **labels},
        aliases=aliases,
    )


def host_images(extra: Sequence[Path] = ()) -> list[ProcessImage]:
    """Interpreters of this host, ours first. Blocks: it runs the others once."""
    own = _own_python()
    pythons = [own]
    for candidate in (Path("/usr/bin/python3"), *extra):
        found = None if os.path.realpath(candidate) == own.executable else _ask(candidate)
        if found is not None and found.executable not in {python.executable for python in pythons}:
            pythons.append(found)
    images: list[ProcessImage] = []
    names: set[str] = set()
    for python in pythons:
        is_first = python is own
        taken = f"python:{python.minor}" in names
        tag = f"python:{python.minor}" if not taken else f"python:{python.minor}-{_suffix(python, len(names))}"
        names.add(tag)
        images.append(_host_python(python, tag, (*(("python",) if is_first else ()), tag)))
    runner = pythons[0]
    for runtime, path in RUNTIME_PATHS.items():
        if not shutil.which(path):
            continue
        images.append(
            ProcessImage(
                name=f"host/{runtime}:latest",
                runtime=runtime,
                version="",
                interpreter=runner.executable,
                runtime_path=path,
                prefixes=runner.prefixes,
                aliases=(runtime, f"{runtime}:latest", *(("gcc",) if runtime == "c" else ())),
            )
        )
    return images
