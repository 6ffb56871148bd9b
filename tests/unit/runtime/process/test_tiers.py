from __future__ import annotations

import resource
import signal
from pathlib import Path
from uuid import uuid4

import pytest

from ai.backend.common.errors import CreationDenied
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.states import Enforcement
from ai.backend.node.linux.cgroups import CgroupDriver, CgroupV2, NoCgroups
from ai.backend.node.workload.directory import exit_of
from ai.backend.node.workload.file_trees import check_mount
from ai.backend.plugin.accelerator import Mount, WorkloadConfig
from ai.backend.plugin.runtime import WorkloadExit, WorkloadKey, WorkloadSpec
from ai.backend.runtime.process.etc_folder import EtcFolder
from ai.backend.runtime.process.images import ProcessImage
from ai.backend.runtime.process.launch_plan import COOKIE_VARIABLE, Host, folders_of, variables_of
from ai.backend.runtime.process.probe import enforcement_of, tier_of
from ai.backend.runtime.process.records import Record
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from ai.backend.runtime.workload import SESSION_PREFIX, read_record, write_record

ALL = frozenset({"cpu", "memory", "pids"})


@pytest.mark.parametrize(
    ("sandbox", "controllers", "tier"),
    [
        (True, ALL, "sealed"),
        (True, frozenset(), "caged"),
        (True, frozenset({"cpu", "memory"}), "caged"),
        (False, ALL, "fenced"),
        (False, frozenset({"pids"}), "bare"),
    ],
)
def test_tiers(sandbox: bool, controllers: frozenset[str], tier: str) -> None:
    assert tier_of(sandbox, controllers) == tier


def host(*, bwrap: str | None, cgroups: CgroupDriver, is_root: bool = False, late: bool = False) -> Host:
    return Host(
        bwrap=bwrap,
        cgroups=cgroups,
        has_seccomp=True,
        can_limit_pids_late=late,
        runner=Path("/r"),
        static_folder=Path("/s"),
        etc_copies=EtcFolder(Path("/s"), (), {}),
        is_root=is_root,
    )


def test_enforcement_never_claims_what_is_not_there() -> None:
    settings = ProcessRuntimeSettings()
    bare = enforcement_of(host(bwrap=None, cgroups=NoCgroups()), settings)
    assert Enforcement.ENFORCED not in {value for key, value in bare.items() if key != "seccomp"}
    caged = enforcement_of(host(bwrap="/bwrap", cgroups=NoCgroups()), settings)
    assert caged["filesystem"] is Enforcement.ENFORCED
    assert caged["memory"] is Enforcement.WATCHED
    assert caged["network"] is Enforcement.NONE
    sealed = enforcement_of(
        host(bwrap="/bwrap", cgroups=CgroupV2(base=Path("/b"), controllers=ALL)), ProcessRuntimeSettings(network="none")
    )
    assert {sealed[key] for key in ("cpu", "memory", "pids", "network")} == {Enforcement.ENFORCED}
    assert set(bare) == set(caged) == set(sealed)


def spec(**changes: object) -> WorkloadSpec:
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=3)
    return WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="python", **changes)  # type: ignore[arg-type]  # test


def test_the_session_cannot_forge_its_identity() -> None:
    wanted = {"BACKENDAI_KERNEL_ID": "x", COOKIE_VARIABLE: "y", "HOME": "/root", "LANG": "de_DE.UTF-8"}
    wanted |= {"LD_PRELOAD": "/tmp/evil.so", "PATH": "/evil", SESSION_PREFIX + "HOME": "/evil"}
    asked = spec(environ=wanted, config=WorkloadConfig(env_vars={"CUDA": "1", "LANG": "plugin"}))
    image = ProcessImage(
        name="i",
        runtime="python",
        version="",
        interpreter="/opt/p/bin/python",
        runtime_path="/opt/p/bin/python",
        environ={"LANG": "image", "NODE_ENV": "image", "LD_AUDIT": "/evil.so", "HOME": "/root"},
    )
    environ = variables_of(asked, image, "/home/work", "cookie")
    assert environ["BACKENDAI_KERNEL_ID"] == str(asked.key.kernel_id)
    assert environ[COOKIE_VARIABLE] == "cookie"
    assert environ["HOME"] == "/home/work"
    assert environ[SESSION_PREFIX + "LANG"] == "de_DE.UTF-8"
    assert environ[SESSION_PREFIX + "CUDA"] == "1"
    assert environ[SESSION_PREFIX + "NODE_ENV"] == "image"
    assert (
        not {
            "CUDA",
            "LD_PRELOAD",
            "LD_AUDIT",
            "NODE_ENV",
            SESSION_PREFIX + "HOME",
            SESSION_PREFIX + "BACKENDAI_KERNEL_ID",
        }
        & environ.keys()
    )
    assert environ["PATH"].startswith("/opt/p/bin:")


def test_a_folder_in_memory_has_nothing_mounted_in_it() -> None:
    """It is read-only: a file of a folder below it, or a mount, could not be shown any more."""
    node = host(bwrap="/usr/bin/bwrap", cgroups=NoCgroups(), is_root=True)
    public = {"/home/config/environ.txt": b"a", "/home/config/resource.txt": b"b"}
    in_memory = {"/home/config": {"environ.txt": b"a", "resource.txt": b"b"}}
    assert folders_of(public, spec(), node) == in_memory
    assert folders_of({**public, "/home/work/.bashrc": b"c"}, spec(), node) == in_memory
    assert folders_of({**public, "/home/config/ssh/id_user.pub": b"key"}, spec(), node) == {}
    key = "/home/config/key"
    assert folders_of({**public, key: b"key"}, spec(private_files=frozenset({key})), node) == {}
    mounted = WorkloadConfig(mounts=(Mount(source="/srv", target="/home/config/srv"),))
    assert folders_of(public, spec(config=mounted), node) == {}


def record_of(cookie: str) -> Record:
    return Record(
        key=WorkloadKey(kernel_id=KernelId(uuid4()), attempt=2),
        session_id=SessionId(uuid4()),
        image="host/python:3.11",
        cookie=cookie,
        cgroups=({"path": "/g"},),
        home="/h",
        sandboxed=True,
        memory_bytes=1,
        cpu_limit=0.5,
        home_bytes=None,
        labels={"a": "b"},
        made_home=True,
    )


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    record = record_of("c")
    write_record(tmp_path, record)
    assert read_record(tmp_path, Record) == record


def test_a_record_that_cannot_be_written_anew_stays_as_it_was(tmp_path: Path) -> None:
    """A limit of the size of files stands for a full disk: the file is opened, and the writing fails."""
    record = record_of("first")
    write_record(tmp_path, record)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_record(tmp_path, record_of("second"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert read_record(tmp_path, Record) == record


def test_exits() -> None:
    assert exit_of({"code": 3}) == WorkloadExit(code=3)
    assert exit_of({"signal": 9, "oom": True, "reason": None}) == WorkloadExit(signal=9, oom=True)


@pytest.mark.parametrize(
    "target", ["", "x", "/a/../b", "/a//b", "/", "/etc", "/proc/1", "/dev/null", "/home/work", "/usr"]
)
def test_mount_targets_that_are_denied(target: str) -> None:
    with pytest.raises(CreationDenied):
        check_mount(Mount(source="/", target=target))


def test_settings_have_kebab_names_and_no_root() -> None:
    assert ProcessRuntimeSettings.model_validate({"kernel-uid": 7}).kernel_uid == 7
    with pytest.raises(ValueError, match="kernel-uid"):
        ProcessRuntimeSettings.model_validate({"kernel-uid": 0})
    with pytest.raises(ValueError, match="extra"):
        ProcessRuntimeSettings.model_validate({"no-such": 1})
