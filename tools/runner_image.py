"""Writes the image of the Kubernetes runtime's runner: `python -m tools.runner_image TARGET.tar [NAME]`.

It holds the runner, the relay, their interpreter (extra ``krunner``), the C library of this machine with its loader,
and the kit of the services `ssh` and `ttyd`, so that they start in any image. The archive is as `docker save` writes.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tools.kube.images import pack_image

from ai.backend.agent.kit.build import KIT_IN_IMAGE, build_kit
from ai.backend.node.workload import runner_files
from ai.backend.runtime.docker import interpreter

RUNNER_IMAGE = "registry.test/backendai-runner:1"
PLATFORM = "opt/backend.ai"
KERNEL_UID = 59500
_FOLDERS = ("etc", "tmp", "dev", "proc", "sys", "run", "opt", PLATFORM)
_PASSWD = (
    "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\nwork:x:{0}:{0}:work:/home/work:/bin/sh\n"
)
_GROUP = "root:x:0:\nnogroup:x:65534:\nwork:x:{0}:\n"


def write_runner_image(target: Path, image_name: str = RUNNER_IMAGE) -> None:
    """Writes the image. Raises FileNotFoundError without an interpreter for this machine, KitFailed."""
    with tempfile.TemporaryDirectory(prefix="bai-runner-") as folder_name:
        folder = Path(folder_name)
        python = interpreter.unpack(folder / "python")
        if python is None:
            raise FileNotFoundError("there is no interpreter for this machine (extra `krunner`)")
        kernel = runner_files.copy_runner(runner_files.find_runner(), folder, runner_files.find_relay())
        program = python / "bin/python3"
        for place in (kernel, python / "lib"):
            # Unchecked: the times of files do not survive every way into a node.
            command = [str(program), "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
            subprocess.run([*command, str(place)], check=False, capture_output=True)
        layer = folder / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            for directory in (
                "etc",
                "tmp",
                "dev",
                "proc",
                "sys",
                "run",
                "opt",
                PLATFORM,
                f"{PLATFORM}/tools",
                f"{PLATFORM}/libc",
                f"{PLATFORM}/kit",
            ):
                _add_folder(tar, directory)
            tar.add(kernel, f"{PLATFORM}/kernel", filter=_as_root)
            tar.add(python, f"{PLATFORM}/python", filter=_as_root)
            tar.add(build_kit(folder / "kits"), f"{PLATFORM}/kit/{KIT_IN_IMAGE}", filter=_as_root)
            tar.add(kernel / "su-exec", f"{PLATFORM}/tools/su-exec", filter=_as_root)
            for text, path in ((_PASSWD, "passwd"), (_GROUP, "group")):
                _add_text(tar, f"etc/{path}", text.format(KERNEL_UID))
            for library in _libraries(program, python / "lib"):
                name_in_image = "ld.so" if "/ld-" in library else Path(library).name
                tar.add(os.path.realpath(library), f"{PLATFORM}/libc/{name_in_image}", filter=_as_root)
        pack_image(target, image_name, layer, environment=(f"PATH=/{PLATFORM}/python/bin",))


def _libraries(program: Path, modules: Path) -> Iterable[str]:
    """Returns what the interpreter and its modules load beside themselves."""
    libraries: set[str] = set()
    for path in (program, *modules.rglob("*.so")):
        done = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
        libraries.update(re.findall(r"(?:=> )?(/\S+) \(0x", done.stdout))
    return sorted(library for library in libraries if not library.startswith(str(modules.parent)))


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode |= 0o444 | (0o111 if entry.isdir() or entry.mode & 0o100 else 0)
    return entry


def _add_folder(tar: tarfile.TarFile, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
    tar.addfile(entry)


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text.encode()), 0o644
    tar.addfile(entry, io.BytesIO(text.encode()))


if __name__ == "__main__":
    write_runner_image(Path(sys.argv[1]), *sys.argv[2:3])
