"""Users who mean harm, in gVisor: the attacks on the other sandboxes of the process runtime, and some on this one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tools.kube.families import families

from ai.backend.node.workload.file_trees import remove_tree
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from tests.component.runtime import test_hostile, test_mount_attacks
from tests.component.runtime.conftest import Bench

pytestmark = [pytest.mark.slow, pytest.mark.needs("gvisor", "cgroups", "root", "isolation")]
SETTINGS: dict[str, Any] = {"runsc": families()["gvisor"].place() / "runsc", "default_runtime_class": "gvisor"}
SPY = """
import ctypes, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
memory = (ctypes.c_char * 64)()
piece = (ctypes.c_void_p * 2)(ctypes.addressof(memory), 64)
def attempt(name, pid, call):
    try:
        if call() not in (-1, b""): print(name, pid)
    except OSError: pass
ordinary = subprocess.Popen(["sleep", "100"])
for pid in (1, os.getppid(), ordinary.pid):
    attempt("fd", pid, lambda: os.open(f"/proc/{pid}/fd/4", os.O_RDWR))
    attempt("memory", pid, lambda: open(f"/proc/{pid}/mem", "rb").read(1))
    attempt("environ", pid, lambda: open(f"/proc/{pid}/environ", "rb").read(1))
    attempt("ptrace", pid, lambda: libc.ptrace(16, pid, 0, 0))
    address = ctypes.c_void_p * 2
    maps = int(open("/proc/self/maps").readline().split("-")[0], 16)
    attempt("read", pid, lambda: libc.process_vm_readv(pid, piece, 1, address(maps, 64), 1, 0))
    pidfd = libc.syscall(434, pid, 0)
    attempt("getfd", pid, lambda: libc.syscall(438, pidfd, 3, 0))
ordinary.kill()
print("ordinary", ordinary.pid)
"""

test_a_deep_and_closed_home_is_removed = test_hostile.test_a_deep_and_closed_home_is_removed
test_a_fork_bomb = test_hostile.test_a_fork_bomb
test_a_users_library_is_loaded_by_nothing_but_the_users_programs = (
    test_hostile.test_a_users_library_is_loaded_by_nothing_but_the_users_programs
)
test_descriptors_are_closed = test_hostile.test_descriptors_are_closed
test_memory_is_filled = test_hostile.test_memory_is_filled
test_names_of_files_are_text_for_the_agent = test_hostile.test_names_of_files_are_text_for_the_agent
test_nothing_of_the_host_is_seen = test_hostile.test_nothing_of_the_host_is_seen
test_sigterm_is_ignored = test_hostile.test_sigterm_is_ignored
test_strangers_at_the_socket = test_hostile.test_strangers_at_the_socket
test_the_channel_is_out_of_reach = test_hostile.test_the_channel_is_out_of_reach
test_the_home_is_filled = test_hostile.test_the_home_is_filled
test_the_runner_is_killed = test_hostile.test_the_runner_is_killed
test_unlinked_files_count = test_hostile.test_unlinked_files_count
test_who_shows_the_cookie_is_not_killed_for_it = test_hostile.test_who_shows_the_cookie_is_not_killed_for_it
test_a_link_in_a_shared_folder_leads_no_mount_to_the_runner = (
    test_mount_attacks.test_a_link_in_a_shared_folder_leads_no_mount_to_the_runner
)
test_a_link_in_the_home_leads_no_mount_to_the_host = (
    test_mount_attacks.test_a_link_in_the_home_leads_no_mount_to_the_host
)
test_a_link_in_the_home_leads_no_mount_to_the_runner = (
    test_mount_attacks.test_a_link_in_the_home_leads_no_mount_to_the_runner
)
test_mounts_lie_in_the_home_and_in_each_other = test_mount_attacks.test_mounts_lie_in_the_home_and_in_each_other
test_nothing_covers_the_runner_or_the_home = test_mount_attacks.test_nothing_covers_the_runner_or_the_home


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    state = tmp_path / "state"
    runtime = ProcessRuntime(ProcessRuntimeSettings(watch_interval_s=1.0, **SETTINGS), state)
    await runtime.setup()
    try:
        yield Bench(runtime, state)
        for view in await runtime.list_workloads():
            await runtime.remove(view.key)
        await runtime.shutdown()
    finally:
        remove_tree(state)


async def test_the_runner_is_out_of_reach(bench: Bench) -> None:
    """Of the first process, which gets the connections, and of the runner, nothing can be taken or read."""
    key, talk = await bench.start()
    await talk.run(SPY)
    *attempts, (_, ordinary) = (line.split() for line in talk.text().splitlines())
    assert {pid for _, pid in attempts} == {ordinary}
    assert {"ptrace", "environ"} <= {name for name, _ in attempts}
    await bench.end(key, talk)
