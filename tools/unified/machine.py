"""Runs a command in a virtual machine: this machine's programs, on Debian's kernel with the unified hierarchy only.

The machine sees the files of this one, read-only, through virtiofs; what it writes goes to a disk of its own, which is
removed at its end. It has no network but its own loopback device. Where `/dev/kvm` works it runs at nearly the speed of
this machine, else QEMU translates each instruction, which takes ten to twenty times as long.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tools.unified.control_plane import Connection
from tools.unified.kernel import MachineFailed, ensure_kernel, write_initramfs

_HERE = Path(__file__).parent
_QEMU = "qemu-system-x86_64"
_DAEMONS = ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd")
_SOCKET_TIMEOUT_S = 10.0
_FAST = ("-enable-kvm", "-cpu", "host,-arch-capabilities")
_SLOW = ("-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max")
_KVM_START_S, _SLOW_START_S = 10.0, 180.0
SHARED = Path("/mnt/ours")
"""The folder of the machine at which it mounts the folders of this host that it is given."""
_KEPT_VARIABLES = ("HOME", "LANG", "PATH")


def why_not() -> str | None:
    """Say what this machine lacks for such a machine; None where nothing is lacking."""
    if os.geteuid() != 0:
        return "machine: needs root"
    lacking = [name for name in (_QEMU, "busybox", "cpio", "modprobe", "mkfs.ext4") if shutil.which(name) is None]
    if not any(Path(daemon).exists() for daemon in _DAEMONS):
        lacking.append("virtiofsd")
    return f"binary: not installed: {', '.join(lacking)}" if lacking else None


def run(
    command: Sequence[str],
    *,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    connection: Connection | None = None,
    shared: Mapping[str, Path] | None = None,
    memory_mib: int = 4096,
    processors: int = 2,
    disk_gib: int = 24,
    timeout_s: float = 3600.0,
) -> int:
    """Run a command in ``directory``; what it writes goes to our own output.

    Args:
        environment: variables beside HOME, LANG and PATH of this process.
        connection: to a control plane of Kubernetes; without it the machine has no network.
        shared: further folders of this machine, which it sees at ``SHARED`` by these names.
        disk_gib: size of its disk, of which this machine's disk gives what is used.

    Returns:
        The command's exit status; 124 if it took longer than ``timeout_s``.

    Raises:
        MachineFailed: the machine cannot be started, or ended without the command's.
    """
    if (reason := why_not()) is not None:
        raise MachineFailed(reason)
    kernel = ensure_kernel()
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bai-unified-")))
        write_initramfs(kernel, folder / "initramfs")
        _write_disk(folder / "disk", disk_gib)
        folders = {"modules": kernel / "lib" / "modules", **(shared or {})}
        variables = dict(environment or {})
        if connection is not None:
            folders["authority"] = connection.cluster.authority.folder
            variables |= connection.variables(SHARED / "authority")
        _write_order(folder, command, directory, variables)
        _share_files(folder, folders, ends)
        options = _qemu(folder, kernel, memory_mib, processors)
        if connection is not None:
            options = [*connection.prefix, *options, *connection.options]
        started = time.monotonic()
        machine = _start(folder, options, folders, ends)
        print(f"the machine runs after {time.monotonic() - started:.0f} s", flush=True)
        try:
            machine.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return 124
        words = _status(folder)
        if words[1:3] != ["exit", "status"]:
            raise MachineFailed("the machine ended before the command did")
        return int(words[3])


def _start(
    folder: Path, options: Sequence[str], folders: Mapping[str, Path], ends: ExitStack
) -> subprocess.Popen[bytes]:
    """Start the machine, and return once it says that it runs: with KVM, unless that is there and does not work, as
    within some other virtual machines."""
    for kind, accelerator, timeout_s in (("KVM", _FAST, _KVM_START_S), ("translation", _SLOW, _SLOW_START_S)):
        if accelerator is _FAST and not os.access("/dev/kvm", os.W_OK):
            continue
        (folder / "status").unlink(missing_ok=True)
        machine = subprocess.Popen([*options, *accelerator], stdin=subprocess.DEVNULL, stdout=sys.stdout)
        ends.callback(_end, machine)
        deadline = time.monotonic() + timeout_s
        while machine.poll() is None and time.monotonic() < deadline:
            if _status(folder)[:1] == ["running"]:
                return machine
            time.sleep(0.05)
        _end(machine)
        print(f"the machine does not start by {kind}", file=sys.stderr)
        _share_files(folder, folders, ends)
    raise MachineFailed("the machine does not start")


def _status(folder: Path) -> list[str]:
    path = folder / "status"
    return path.read_text(errors="replace").split() if path.exists() else []


def _write_disk(path: Path, size_gib: int) -> None:
    with path.open("wb") as disk:
        disk.truncate(size_gib << 30)
    done = subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", str(path)], capture_output=True, check=False)
    if done.returncode != 0:
        raise MachineFailed(f"no file system can be made: {done.stderr.decode(errors='replace')}")


def _write_order(folder: Path, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
    variables = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ} | dict(environment)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    lines.append(f"DIRECTORY={shlex.quote(str(directory))}")
    lines.append(f"COMMAND={shlex.quote(f'cd {shlex.quote(str(directory))} && exec {shlex.join(command)}')}")
    (folder / "order").write_text("\n".join(lines) + "\n")


def _share_files(folder: Path, folders: Mapping[str, Path], ends: ExitStack) -> None:
    """Start the daemon that serves this machine's files, of which it itself sees a read-only view.

    The view has the folder `/run/unified` with the script, the order and these folders.
    """
    view, ours, socket = folder / "view", folder / "ours", folder / "files.sock"
    for path in (view, ours):
        path.mkdir(exist_ok=True)
    socket.unlink(missing_ok=True)
    for source, name in ((_HERE / "inside.sh", "inside.sh"), (folder / "order", "order")):
        shutil.copy(source, ours / name)
    daemon = next(daemon for daemon in _DAEMONS if Path(daemon).exists())
    quoted = {name: shlex.quote(str(path)) for name, path in (("view", view), ("ours", ours), ("socket", socket))}
    steps = (
        "mount --make-rprivate /",
        "mount --bind / {view}",
        "mount -t tmpfs tmpfs {view}/run",
        "mkdir {view}/run/unified",
        "cp -a {ours}/. {view}/run/unified",
        *(
            f"mkdir {{view}}/run/unified/{name} && mount --bind {shlex.quote(str(path))} {{view}}/run/unified/{name}"
            for name, path in folders.items()
        ),
        "mount -o remount,bind,ro {view}",
        f"exec {daemon} --socket-path={{socket}} -o source={{view}} -o cache=always -o sandbox=chroot -o log_level=err",
    )
    script = " && ".join(steps).format(**quoted)
    process = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdin=subprocess.DEVNULL)
    ends.callback(_end, process)
    deadline = time.monotonic() + _SOCKET_TIMEOUT_S
    while not socket.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise MachineFailed("virtiofsd does not start")
        time.sleep(0.02)


def _qemu(folder: Path, kernel: Path, memory_mib: int, processors: int) -> list[str]:
    (image,) = (kernel / "boot").glob("vmlinuz-*")
    return [
        *(_QEMU, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-machine", "q35"),
        *("-smp", str(processors), "-m", str(memory_mib)),
        *("-object", f"memory-backend-memfd,id=memory,size={memory_mib}M,share=on", "-numa", "node,memdev=memory"),
        *("-kernel", str(image), "-initrd", str(folder / "initramfs")),
        *("-append", "console=ttyS0 quiet panic=-1 systemd.unified_cgroup_hierarchy=1 mitigations=off"),
        *("-chardev", f"socket,id=files,path={folder / 'files.sock'}"),
        *("-device", "vhost-user-fs-pci,queue-size=1024,chardev=files,tag=host"),
        *("-drive", f"file={folder / 'disk'},format=raw,if=virtio,cache=unsafe,discard=unmap"),
        *("-serial", "stdio", "-serial", f"file:{folder / 'status'}"),
    ]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
