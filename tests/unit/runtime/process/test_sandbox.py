"""The arguments of bubblewrap."""

from pathlib import Path

import pytest

from ai.backend.runtime.process.launch_plan import SANDBOX_PATH
from ai.backend.runtime.process.sandbox import PROGRAMS_FOLDER, HostPaths, compose


def paths(*, rootfs: Path | None = None, in_user_namespace: bool = True) -> HostPaths:
    return HostPaths(
        bwrap="/usr/bin/bwrap",
        home=Path("/state/home"),
        runner=Path("/state/runner"),
        static_folder=Path("/state/static"),
        etc_folder=None,
        prefixes=(),
        rootfs=rootfs,
        python="/usr/bin/python3.11",
        mounts=(),
        devices=(),
        files={},
        folders={},
        hostname="main1",
        tmp_bytes=1,
        shmem_bytes=1,
        has_private_network=False,
        has_seccomp=False,
        has_block_fd=False,
        is_staged=False,
        in_user_namespace=in_user_namespace,
    )


@pytest.mark.parametrize("has_own", [True, False])
def test_an_image_has_su_exec_unless_it_brings_its_own(tmp_path: Path, has_own: bool) -> None:
    (tmp_path / "opt" / ("kernel" if has_own else "other")).mkdir(parents=True)
    arguments, _ = compose(paths(rootfs=tmp_path), ["/bin/true"])
    assert ("/opt/kernel/su-exec" in arguments) is not has_own


@pytest.mark.parametrize("in_user_namespace", [True, False])
def test_a_system_without_python_has_it_for_the_session(in_user_namespace: bool) -> None:
    arguments, _ = compose(paths(in_user_namespace=in_user_namespace), ["/bin/true"])
    at = arguments.index("/usr/bin/python3.11")
    assert arguments[at - 1 : at + 2] == ["--symlink", "/usr/bin/python3.11", f"{PROGRAMS_FOLDER}/python"]
    assert SANDBOX_PATH.split(":")[-1] == PROGRAMS_FOLDER, "what the system calls python goes before"
