"""Debian's kernel, as its package has it, and the first root file system of the machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tools.kube.families import cache_folder

_PACKAGE = "linux-image-cloud-amd64"
_MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "virtiofs", "overlay")
"""What the first root file system loads; the kernel loads others by `modprobe` once the machine's own is there."""
_HERE = Path(__file__).parent


class MachineFailed(RuntimeError):
    """Says why the machine cannot be made or started."""


def ensure_kernel() -> Path:
    """Return the folder with the kernel's `boot` and `lib/modules`, downloaded from Debian where it is missing.

    Raises:
        MachineFailed: the package cannot be had.
    """
    depends = _run("apt-cache", "depends", _PACKAGE)
    match = re.search(r"Depends: (linux-image-\S+)", depends)
    if match is None:
        raise MachineFailed(f"apt knows no {_PACKAGE}: run apt-get update")
    package = match.group(1)
    folder = cache_folder().parent / "unified" / package
    if folder.is_dir():
        return folder
    partial = folder.with_name(f"{package}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _run("apt-get", "-o", "APT::Sandbox::User=root", "download", package, cwd=partial)
    (archive,) = partial.glob("*.deb")
    _run("dpkg-deb", "-x", str(archive), str(partial))
    archive.unlink()
    _run("depmod", "-b", str(partial), release(partial))
    partial.rename(folder)
    return folder


def release(folder: Path) -> str:
    """Return the kernel's release, as `uname -r` in the machine says."""
    (modules,) = (folder / "lib" / "modules").iterdir()
    return modules.name


def write_initramfs(kernel: Path, target: Path) -> None:
    """Write the first root file system: busybox, the modules, and the script that goes on to the machine's own.

    Raises:
        MachineFailed: busybox is missing, or not static.
    """
    busybox = shutil.which("busybox")
    if busybox is None:
        raise MachineFailed("busybox is not installed (package busybox-static)")
    top = target.with_suffix(".tree")
    (top / "bin").mkdir(parents=True)
    (top / "modules").mkdir()
    shutil.copy(busybox, top / "bin" / "busybox")
    shutil.copy(_HERE / "init.sh", top / "init")
    (top / "init").chmod(0o755)
    names: list[str] = []
    for module in _MODULES:
        shown = _run("modprobe", "-d", str(kernel), "-S", release(kernel), "--show-depends", module)
        for line in shown.splitlines():
            path = Path(line.split()[1]) if line.startswith("insmod ") else None
            if path is not None and path.name not in names:
                names.append(path.name)
                shutil.copy(path, top / "modules" / path.name)
    (top / "modules" / "order").write_text("\n".join(names) + "\n")
    paths = "\n".join(str(path.relative_to(top)) for path in sorted(top.rglob("*")))
    with target.open("wb") as output:
        subprocess.run(
            ["cpio", "--quiet", "-o", "-H", "newc"], cwd=top, input=paths.encode(), stdout=output, check=True
        )
    shutil.rmtree(top)


def _run(*command: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
        )
    except FileNotFoundError:
        raise MachineFailed(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        raise MachineFailed(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout
