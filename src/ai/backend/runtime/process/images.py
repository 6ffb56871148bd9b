"""Describes the images of the process runtime: interpreters of the host, and imported root file systems."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from ai.backend.plugin.runtime import RuntimeImage

_MANUAL_ALIASES: Mapping[str, Sequence[str]] = json.loads(Path(__file__).with_name("aliases.json").read_bytes())
"""Maps each host image to the image names of the manual's examples. The host image stands for them where there is no
image of that name.
"""
RUNTIME_PATHS = {
    "bash": "/bin/bash",
    "c": "/usr/bin/gcc",
    "cpp": "/usr/bin/g++",
    "nodejs": "/usr/bin/node",
    "r": "/usr/bin/Rscript",
}
FEATURES_LABEL = "query batch uid-match user-input"
MIN_PYTHON = (3, 8)
_HIDDEN_PREFIXES = ("/tmp/", "/var/tmp/", "/dev/", "/home/work/")
"""Folders that sessions do not see as the host has them, since they have something of their own there."""
_VERSION_SCRIPT = "import sys; print('%d.%d.%d' % sys.version_info[:3], sys.prefix, sys.base_exec_prefix, sep='\\n')"


class ProcessImage(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an image of the process runtime.

    Attributes:
        runtime: the runner's runtime (python, bash, c).
        interpreter: the Python that runs the runner, as a path inside the sandbox.
        prefixes: host directories that the interpreter needs beyond the system's.
        rootfs: the imported root directory; None for a host image.
        environ: the variables that the image sets.
        unused: parts of the image's configuration that sessions do not use, such as its entry point, as text.
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
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    environ: dict[str, str] = msgspec.field(default_factory=dict)
    unused: dict[str, str] = msgspec.field(default_factory=dict)

    def to_runtime_image(self) -> RuntimeImage:
        return RuntimeImage(
            name=self.name,
            architecture=platform.machine(),
            digest=self.digest,
            size_bytes=self.size_bytes,
            labels={**standard_labels(self.runtime, self.runtime_path), **self.labels},
            aliases=self.aliases,
        )


def standard_labels(runtime: str, runtime_path: str) -> dict[str, str]:
    """Returns the image labels that the spec defines (03-05, "Metadata Labels") for a host image."""
    return {
        "ai.backend.kernelspec": "1",
        "ai.backend.runtime-type": runtime,
        "ai.backend.runtime-path": runtime_path,
        "ai.backend.features": FEATURES_LABEL,
        "ai.backend.role": "COMPUTE",
        "ai.backend.base-distro": "host",
        "ai.backend.resource.min.cpu": "1",
        "ai.backend.resource.min.mem": "64m",
        "ai.backend.envs.corecount": "OPENBLAS_NUM_THREADS,OMP_NUM_THREADS,NPROC",
    }


class _Python(msgspec.Struct, frozen=True):
    executable: str
    version: str
    prefixes: tuple[str, ...]

    @property
    def minor_version(self) -> str:
        return ".".join(self.version.split(".")[:2])


def own_python() -> _Python:
    """Returns the base interpreter of the agent's virtual environment, whose files sessions may see."""
    base_prefix = os.path.realpath(sys.base_prefix)
    file_names = (f"python{sys.version_info[0]}.{sys.version_info[1]}", "python3")
    candidate_paths = (Path(base_prefix, "bin", file_name) for file_name in file_names)
    executable = next((str(path) for path in candidate_paths if path.exists()), sys.executable)
    version = ".".join(map(str, sys.version_info[:3]))
    return _Python(
        os.path.realpath(executable),
        version,
        _prefixes_outside_usr((base_prefix, os.path.realpath(sys.base_exec_prefix))),
    )


def _inspect_python(executable: Path) -> _Python | None:
    """Returns the version and the prefixes of an interpreter; None for a broken or too old interpreter."""
    try:
        completed = subprocess.run(
            [str(executable), "-I", "-S", "-c", _VERSION_SCRIPT], capture_output=True, text=True, timeout=10, check=True
        )
        version, *prefixes = completed.stdout.split("\n")[:3]
        if tuple(map(int, version.split(".")[:2])) < MIN_PYTHON:
            return None
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return _Python(os.path.realpath(executable), version, _prefixes_outside_usr(map(os.path.realpath, prefixes)))


def _prefixes_outside_usr(prefixes: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({prefix for prefix in prefixes if prefix != "/usr" and not prefix.startswith("/usr/")}))


def _has_jupyterlab(python: _Python) -> bool:
    prefix = Path(python.executable).parents[1]
    package_folders = (
        prefix / "lib" / f"python{python.minor_version}" / "site-packages",
        prefix / "lib" / "python3" / "dist-packages",
        prefix / "local" / "lib" / f"python{python.minor_version}" / "dist-packages",
    )
    return any((package_folder / "jupyterlab").is_dir() for package_folder in package_folders)


def _jupyterlab_beside(python: _Python) -> tuple[str, str] | None:
    """Returns the interpreter and the path of a virtual environment that has JupyterLab for that Python."""
    candidate_interpreters = [Path(sys.executable)]
    if (jupyter_path := shutil.which("jupyter-lab")) is not None:
        candidate_interpreters.append(Path(jupyter_path).resolve().with_name("python"))
    for candidate_interpreter in candidate_interpreters:
        environment = candidate_interpreter.absolute().parents[1]
        package_folder = environment / "lib" / f"python{python.minor_version}" / "site-packages"
        if str(environment).startswith(_HIDDEN_PREFIXES):
            continue
        if all((package_folder / package).is_dir() for package in ("jupyterlab", "ipykernel")) and (
            os.path.realpath(candidate_interpreter) == python.executable
        ):
            return str(environment / "bin" / candidate_interpreter.name), str(environment)
    return None


def host_python_image(python: _Python, image_name: str, aliases: tuple[str, ...]) -> ProcessImage:
    """Returns the image of a Python of this host, with the services that it can provide.

    These are a web server of files, and JupyterLab if it is installed for that Python.
    """
    services, labels, prefixes = ["http:http:8000"], {}, python.prefixes
    jupyterlab_beside = None if _has_jupyterlab(python) else _jupyterlab_beside(python)
    if jupyterlab_beside is not None:
        labels["ai.backend.service-path.jupyterlab"], environment = jupyterlab_beside
        prefixes = tuple(dict.fromkeys((*prefixes, *_prefixes_outside_usr([environment]))))
    if jupyterlab_beside is not None or _has_jupyterlab(python):
        services.append("jupyterlab:http:8090")
    return ProcessImage(
        name=f"host/{image_name}",
        runtime="python",
        version=python.version,
        interpreter=python.executable,
        runtime_path=python.executable,
        prefixes=prefixes,
        labels={"ai.backend.service-ports": ",".join(services), **labels},
        aliases=aliases,
    )


def host_images(extra_interpreters: Sequence[Path] = ()) -> list[ProcessImage]:
    """Returns images of this host's interpreters, the agent's own first. Blocks: runs the other interpreters once."""
    agent_python = own_python()
    interpreters = [agent_python]
    for candidate_path in (Path("/usr/bin/python3"), *extra_interpreters):
        python = (
            None if os.path.realpath(candidate_path) == agent_python.executable else _inspect_python(candidate_path)
        )
        if python is not None and python.executable not in {interpreter.executable for interpreter in interpreters}:
            interpreters.append(python)
    images: list[ProcessImage] = []
    tags: set[str] = set()
    for python in interpreters:
        tag = f"python:{python.minor_version}"
        if tag in tags:
            tag += "-system" if python.executable.startswith("/usr/bin/") else f"-{len(tags)}"
        tags.add(tag)
        aliases = ("python", tag, *_MANUAL_ALIASES["python"]) if python is agent_python else (tag,)
        images.append(host_python_image(python, tag, aliases))
    for runtime, runtime_path in RUNTIME_PATHS.items():
        if shutil.which(runtime_path):
            image = ProcessImage(
                name=f"host/{runtime}:latest",
                runtime=runtime,
                version="",
                interpreter=agent_python.executable,
                runtime_path=runtime_path,
                prefixes=agent_python.prefixes,
                aliases=(
                    runtime,
                    f"{runtime}:latest",
                    *(("gcc",) if runtime == "c" else ()),
                    *_MANUAL_ALIASES.get(runtime, ()),
                ),
            )
            images.append(image)
    return images
