"""The arguments of bubblewrap."""

from pathlib import Path

import pytest

from ai.backend.runtime.process.launch_plan import SANDBOX_PATH
from ai.backend.runtime.process.sandbox import PROGRAMS_FOLDER, HostPaths, compose


@pytest.mark.parametrize("user_namespace", [True, False])
def test_a_system_without_python_has_it_for_the_session(user_namespace: bool) -> None:
    scene = HostPaths(
        bwrap="/usr/bin/bwrap",
        home=Path("/state/home"),
        runner=Path("/state/runner"),
        static=Path("/state/static"),
        prefixes=(),
        rootfs=None,
        python="/usr/bin/python3.11",
        mounts=(),
        devices=(),
        files={},
        hostname="main1",
        tmp_bytes=1,
        shmem_bytes=1,
        private_network=False,
        has_seccomp=False,
        has_block=False,
        staged=False,
        user_namespace=user_namespace,
    )
    arguments, _ = compose(scene, ["/bin/true"])
    at = arguments.index("/usr/bin/python3.11")
    assert arguments[at - 1 : at + 2] == ["--symlink", "/usr/bin/python3.11", f"{PROGRAMS_FOLDER}/python"]
    assert SANDBOX_PATH.split(":")[-1] == PROGRAMS_FOLDER, "what the system calls python goes before"
