"""The filter, run by an interpreter of the kernel's instructions as far as the filter uses them."""

from __future__ import annotations

import errno
import json
import struct
from pathlib import Path

import pytest

from ai.backend.common.errors import CreationDenied
from ai.backend.node.linux import seccomp

TABLE = json.loads(Path(seccomp.__file__).with_name("seccomp.json").read_text())
COLUMN = {"x86_64": 0, "aarch64": 1}
ALLOWED, KILLED = "allow", "kill"


def run(program: bytes, machine: str, number: int, argument: int = 0, arch: int | None = None) -> str:
    """What the kernel would do with this call."""
    found = seccomp.AUDIT_ARCH[machine] if arch is None else arch
    data = struct.pack("=IIQ6Q", number, found, 0, argument, 0, 0, 0, 0, 0)
    instructions = list(struct.iter_unpack("=HBBI", program))
    position = accumulator = 0
    while True:
        code, if_true, if_false, operand = instructions[position]
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif code == 0x06:
            if operand == seccomp.ALLOW:
                return ALLOWED
            return KILLED if operand == seccomp.KILL else errno.errorcode[operand & 0xFFFF]
        elif code == 0x05:
            position += operand
        else:
            holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}
            position += if_true if holds[code] else if_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def numbers(machine: str) -> dict[str, int]:
    return {name: pair[COLUMN[machine]] for name, pair in TABLE["numbers"].items() if pair[COLUMN[machine]] is not None}


def test_exactly_the_published_list_is_allowed(machine: str) -> None:
    program = seccomp.compile_policy(machine=machine)
    known = numbers(machine)
    conditional = {known[name] for name in TABLE["conditional"] if name in known}
    allowed = {known[name] for name in TABLE["allow"] if name in known}
    for number in set(range(max(known.values()) + 1)) - conditional:
        assert (run(program, machine, number) == ALLOWED) == (number in allowed), number


@pytest.mark.parametrize(
    "name", ["ptrace", "process_vm_readv", "mount", "bpf", "keyctl", "unshare", "setns", "kexec_load"]
)
def test_the_dangerous_ones_are_denied(machine: str, name: str) -> None:
    assert run(seccomp.compile_policy(machine=machine), machine, numbers(machine)[name]) == "EPERM"


def test_new_calls_and_clone3_do_not_exist(machine: str) -> None:
    program = seccomp.compile_policy(machine=machine)
    assert run(program, machine, numbers(machine)["clone3"]) == "ENOSYS"
    assert run(program, machine, 5000) == "ENOSYS"
    assert run(program, machine, 0x4000_0000 + 39) == "ENOSYS"


def test_clone_makes_threads_but_no_namespaces(machine: str) -> None:
    program = seccomp.compile_policy(machine=machine)
    clone = numbers(machine)["clone"]
    assert run(program, machine, clone, 0x003D_0F00) == ALLOWED
    for flag in (0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000):
        assert run(program, machine, clone, flag | 17) == "EPERM"


def test_sockets_of_known_families_only(machine: str) -> None:
    program = seccomp.compile_policy(machine=machine)
    socket = numbers(machine)["socket"]
    assert {family for family in range(64) if run(program, machine, socket, family) == ALLOWED} == {1, 2, 10, 16}


def test_another_architecture_kills(machine: str) -> None:
    assert run(seccomp.compile_policy(machine=machine), machine, 1, arch=0x4000_0003) == KILLED


def test_a_plugin_may_ask_for_more_but_not_for_everything(machine: str) -> None:
    program = seccomp.compile_policy(("perf_event_open",), machine)
    assert run(program, machine, numbers(machine)["perf_event_open"]) == ALLOWED
    assert {"ptrace", "mount", "move_mount", "pidfd_getfd"} <= seccomp.NEVER_EXTRA
    for name in (*seccomp.NEVER_EXTRA, "no_such_call"):
        with pytest.raises(CreationDenied):
            seccomp.compile_policy((name,), machine)


def test_the_program_is_short_enough_for_the_kernel(machine: str) -> None:
    assert len(seccomp.compile_policy(machine=machine)) // 8 <= 4096
