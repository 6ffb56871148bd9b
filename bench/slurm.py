"""Slurm, as Debian packages it, on loopback: one node that declares 64 processors and isolates nothing.

The settings are those with which it runs small jobs fastest: without delays of its scheduler and without accounting.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.cluster import free_port, temporary_folder

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROCESSORS = 64
START_TIMEOUT_S = 30.0
_SETTINGS = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={daemon_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,default_queue_depth=1000
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
MaxJobCount=20000
NodeName={host} NodeAddr=127.0.0.1 CPUs={processors} State=UNKNOWN
PartitionName=batch Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def install() -> None:
    """Installs Slurm from Debian where it is missing. Raises FileNotFoundError where that is not possible."""
    programs = ("slurmctld", "slurmd", "sbatch", "munged")
    if all(shutil.which(program) for program in programs):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise FileNotFoundError(f"this benchmark needs the Debian packages {' '.join(PACKAGES)}")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *PACKAGES]
    if subprocess.run(command, env=environ, check=False, capture_output=True).returncode:
        subprocess.run(["apt-get", "update", "-q"], env=environ, check=True, capture_output=True)
        subprocess.run(command, env=environ, check=True, capture_output=True)


@contextmanager
def running_slurm() -> Iterator[dict[str, str]]:
    """Yields the environment with which Slurm's commands reach a fresh Slurm, started as root, and ends it."""
    install()
    host = socket.gethostname()
    with temporary_folder() as folder:
        folder.chmod(0o755)  # munge's user passes through
        for name in ("state", "spool"):
            (folder / name).mkdir()
        values = {"host": host, "folder": folder, "processors": PROCESSORS}
        ports = {"controller_port": free_port(), "daemon_port": free_port()}
        (folder / "slurm.conf").write_text(_SETTINGS.format(**values, **ports))
        environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        daemons: list[subprocess.Popen[bytes]] = []
        try:
            daemons.append(_start_munge(folder))
            for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
                daemons.append(_start(command, folder, environ))
            _wait_until_idle(environ)
            yield environ
        finally:
            for daemon in reversed(daemons):
                daemon.terminate()
            for daemon in reversed(daemons):
                daemon.wait(30)


def _start(command: Sequence[str], folder: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    with (folder / f"{command[0]}.out").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)


def _start_munge(folder: Path) -> subprocess.Popen[bytes]:
    place = folder / "munge"
    place.mkdir(mode=0o755)
    (place / "key").write_bytes(os.urandom(128))
    (place / "key").chmod(0o400)
    for path in (place, place / "key"):
        shutil.chown(path, "munge", "munge")
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={place / name}" for option, name in files.items()]
    command = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--foreground", "--force"]
    daemon = _start([*command, *options], folder, dict(os.environ))
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (place / "socket").exists():
        if time.monotonic() > deadline or daemon.poll() is not None:
            raise RuntimeError(f"munged did not start: {(folder / 'setpriv.out').read_text(errors='replace')[-500:]}")
        time.sleep(0.05)
    return daemon


def _wait_until_idle(environ: dict[str, str]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environ, check=False, capture_output=True, text=True)
        if done.stdout.strip() == "idle":
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"Slurm did not start: {done.stdout} {done.stderr}")
        time.sleep(0.1)
