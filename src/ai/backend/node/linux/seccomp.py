"""Compiles the filter of system calls from the published allow-list (``seccomp.json``) to classic BPF.

The program, in order: another architecture's calls kill the process; calls unknown to the table fail with ENOSYS, so
that libraries fall back; conditional calls look at an argument; allowed ones are found by binary search over ranges of
numbers; the rest fails with EPERM. Instructions are 8 bytes: code, jump if true, jump if false, operand
(linux/filter.h).
"""

from __future__ import annotations

import errno
import json
import platform
import struct
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ai.backend.common.errors import CreationDenied

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_MASKED, _RETURN, _JUMP_ALWAYS = 0x20, 0x15, 0x35, 0x45, 0x06, 0x05
ALLOW = 0x7FFF_0000
KILL = 0x8000_0000
ERRNO = 0x0005_0000
_NR_OFFSET, _ARCH_OFFSET, _ARGS_OFFSET = 0, 4, 16
AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_COLUMN_OF_MACHINE = {"x86_64": 0, "aarch64": 1}
NAMESPACE_FLAGS = 0x7E02_0080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME."""
SOCKET_FAMILIES = (1, 2, 10, 16)
PERSONALITIES = (0x0, 0x0008, 0x20000, 0x20008, 0x40000, 0xFFFF_FFFF)
NEVER_EXTRA = frozenset(
    {
        "add_key", "bpf", "chroot", "clone3", "delete_module", "finit_module", "fsconfig", "fsmount", "fsopen",
        "fspick", "init_module", "kexec_file_load", "kexec_load", "keyctl", "mount", "mount_setattr", "move_mount",
        "open_by_handle_at", "open_tree", "pidfd_getfd", "pivot_root", "process_madvise", "process_vm_readv",
        "process_vm_writev", "ptrace", "reboot", "request_key", "setns", "umount2", "unshare", "userfaultfd",
    }
)  # fmt: skip
"""System calls that no plugin may request, because they would break the sandbox."""

Program = list[tuple[int, int, int, int]]
_ALLOW_CALL: Program = [(_RETURN, 0, 0, ALLOW)]
_DENY_CALL: Program = [(_RETURN, 0, 0, ERRNO | errno.EPERM)]


@cache
def _syscall_table() -> dict[str, Any]:
    table_text = Path(__file__).with_name("seccomp.json").read_text(encoding="utf-8")
    syscall_table: dict[str, Any] = json.loads(table_text)
    return syscall_table


def is_supported(machine: str | None = None) -> bool:
    """Returns True if the allow-list of system calls has numbers for this machine."""
    return (machine or platform.machine()) in AUDIT_ARCH


def compile_policy(extra_names: Collection[str] = (), machine: str | None = None) -> bytes:
    """Compiles the system call filter, with the plugins' extra calls. Raises CreationDenied for a forbidden call."""
    return _compile_program(tuple(sorted(extra_names)), machine or platform.machine())


@cache
def _compile_program(extra_names: tuple[str, ...], machine: str) -> bytes:
    number_column = _COLUMN_OF_MACHINE[machine]
    number_of_syscall = {
        name: machine_numbers[number_column]
        for name, machine_numbers in _syscall_table()["numbers"].items()
        if machine_numbers[number_column] is not None
    }
    for name in extra_names:
        if name in NEVER_EXTRA or name not in number_of_syscall:
            raise CreationDenied(
                f"the system call {name!r} cannot be allowed in a session",
                data={"field": "extra_syscalls", "key": name},
            )
    allowed_numbers = {
        number_of_syscall[name] for name in (*_syscall_table()["allow"], *extra_names) if name in number_of_syscall
    }
    return assemble(_assemble_rules(allowed_numbers, number_of_syscall, AUDIT_ARCH[machine]))


def _assemble_rules(allowed_numbers: set[int], number_of_syscall: dict[str, int], arch: int) -> Program:
    program: Program = [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_JUMP_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NR_OFFSET),
        (_JUMP_GREATER_EQUAL, 0, 1, max(number_of_syscall.values()) + 1),
        (_RETURN, 0, 0, ERRNO | errno.ENOSYS),
    ]
    absent_numbers = [
        number_of_syscall[name]
        for name in ("clone3", "io_uring_setup")
        if name in number_of_syscall and number_of_syscall[name] not in allowed_numbers
    ]
    for absent_number in absent_numbers:
        program += [(_JUMP_EQUAL, 0, 1, absent_number), (_RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    program += _check_argument(
        number_of_syscall["clone"], [(_JUMP_MASKED, 0, 1, NAMESPACE_FLAGS), *_DENY_CALL, *_ALLOW_CALL], argument_index=0
    )
    program += _check_argument(number_of_syscall["personality"], _allow_values(PERSONALITIES), argument_index=0)
    program += _check_argument(number_of_syscall["socket"], _allow_values(SOCKET_FAMILIES), argument_index=0)
    return program + _search_ranges(_ranges_of(allowed_numbers))


def _check_argument(call_number: int, body: Program, *, argument_index: int) -> Program:
    """Returns instructions that run ``body`` on one argument of one system call, and skip ``body`` for other calls."""
    load_instructions: Program = [(_LOAD, 0, 0, _ARGS_OFFSET + 8 * argument_index)]
    return [(_JUMP_EQUAL, 0, _check_jump(len(load_instructions) + len(body)), call_number), *load_instructions, *body]


def _allow_values(allowed_values: Sequence[int]) -> Program:
    check_instructions: Program = []
    for allowed_value in allowed_values:
        check_instructions += [(_JUMP_EQUAL, 0, 1, allowed_value), *_ALLOW_CALL]
    return [*check_instructions, *_DENY_CALL]


def _ranges_of(numbers: Collection[int]) -> list[tuple[int, int]]:
    """Groups consecutive system call numbers into ranges (first, last)."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _search_ranges(ranges: Sequence[tuple[int, int]]) -> Program:
    """Returns the instructions that allow the numbers in any of the ranges and deny the rest."""
    if not ranges:
        return _DENY_CALL
    if len(ranges) == 1:
        first_number, last_number = ranges[0]
        return [
            (_JUMP_GREATER_EQUAL, 0, 2, first_number),
            (_JUMP_GREATER_EQUAL, 1, 0, last_number + 1),
            *_ALLOW_CALL,
            *_DENY_CALL,
        ]
    middle_index = len(ranges) // 2
    lower_search, upper_search = _search_ranges(ranges[:middle_index]), _search_ranges(ranges[middle_index:])
    if len(lower_search) <= 255:
        return [(_JUMP_GREATER_EQUAL, len(lower_search), 0, ranges[middle_index][0]), *lower_search, *upper_search]
    return [
        (_JUMP_GREATER_EQUAL, 0, 1, ranges[middle_index][0]),
        (_JUMP_ALWAYS, 0, 0, len(lower_search)),
        *lower_search,
        *upper_search,
    ]


def _check_jump(distance: int) -> int:
    if distance > 255:
        raise ValueError("a jump of the filter is too long")
    return distance


def assemble(program: Program) -> bytes:
    """Encodes instructions in the kernel's form. Raises ValueError over the kernel's limit of 4096."""
    if len(program) > 4096:
        raise ValueError("the filter is too long")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def profile(extra_names: Collection[str] = (), machine: str | None = None) -> dict[str, Any]:
    """Returns the system call filter in the form of container engines (OCI runtime specification, "Seccomp").

    Raises CreationDenied.
    """
    compile_policy(extra_names, machine)
    conditional_names = {"clone", "personality", "socket"}
    absent_names = {"clone3", "io_uring_setup"} - {*_syscall_table()["allow"], *extra_names}
    known_names = set(_syscall_table()["numbers"])
    allowed_names = sorted((known_names & {*_syscall_table()["allow"], *extra_names}) - conditional_names)
    allowed_values_of_call = {"personality": PERSONALITIES, "socket": SOCKET_FAMILIES}
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "syscalls": [
            {"names": allowed_names, "action": "SCMP_ACT_ALLOW"},
            {
                "names": ["clone"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": NAMESPACE_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
            },
            *(
                {
                    "names": [call_name],
                    "action": "SCMP_ACT_ALLOW",
                    "args": [{"index": 0, "value": allowed_value, "op": "SCMP_CMP_EQ"}],
                }
                for call_name, allowed_values in allowed_values_of_call.items()
                for allowed_value in allowed_values
            ),
            *(
                {"names": [call_name], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS}
                for call_name in sorted(absent_names)
            ),
        ],
    }
