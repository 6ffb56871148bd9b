"""The filter of system calls, compiled from the published allow-list (``seccomp.json``) to classic BPF.

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

_LD_ABS, _JEQ, _JGE, _JSET, _RET, _JA = 0x20, 0x15, 0x35, 0x45, 0x06, 0x05
ALLOW = 0x7FFF_0000
KILL = 0x8000_0000
ERRNO = 0x0005_0000
_NR_OFFSET, _ARCH_OFFSET, _ARGS_OFFSET = 0, 4, 16
AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}
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
_ALLOW: Program = [(_RET, 0, 0, ALLOW)]
_DENY: Program = [(_RET, 0, 0, ERRNO | errno.EPERM)]


@cache
def _table() -> dict[str, Any]:
    text = Path(__file__).with_name("seccomp.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def is_supported(machine: str | None = None) -> bool:
    """Returns whether the allow-list has numbers for this machine."""
    return (machine or platform.machine()) in AUDIT_ARCH


def compile_policy(extra: Collection[str] = (), machine: str | None = None) -> bytes:
    """Compiles the filter, with the extra calls of plugins. Raises CreationDenied for a call that cannot be allowed."""
    return _compile(tuple(sorted(extra)), machine or platform.machine())


@cache
def _compile(extra: tuple[str, ...], machine: str) -> bytes:
    column = _COLUMN[machine]
    numbers = {name: pair[column] for name, pair in _table()["numbers"].items() if pair[column] is not None}
    for name in extra:
        if name in NEVER_EXTRA or name not in numbers:
            raise CreationDenied(
                f"the system call {name!r} cannot be allowed in a session",
                data={"field": "extra_syscalls", "key": name},
            )
    allowed = {numbers[name] for name in (*_table()["allow"], *extra) if name in numbers}
    return assemble(_program(allowed, numbers, AUDIT_ARCH[machine]))


def _program(allowed: set[int], numbers: dict[str, int], arch: int) -> Program:
    program: Program = [
        (_LD_ABS, 0, 0, _ARCH_OFFSET),
        (_JEQ, 1, 0, arch),
        (_RET, 0, 0, KILL),
        (_LD_ABS, 0, 0, _NR_OFFSET),
        (_JGE, 0, 1, max(numbers.values()) + 1),
        (_RET, 0, 0, ERRNO | errno.ENOSYS),
    ]
    absent = [
        numbers[name] for name in ("clone3", "io_uring_setup") if name in numbers and numbers[name] not in allowed
    ]
    for number in absent:
        program += [(_JEQ, 0, 1, number), (_RET, 0, 0, ERRNO | errno.ENOSYS)]
    program += _on_call(numbers["clone"], [(_JSET, 0, 1, NAMESPACE_FLAGS), *_DENY, *_ALLOW], argument=0)
    program += _on_call(numbers["personality"], _one_of(PERSONALITIES), argument=0)
    program += _on_call(numbers["socket"], _one_of(SOCKET_FAMILIES), argument=0)
    return program + _search(_ranges(allowed))


def _on_call(number: int, body: Program, *, argument: int) -> Program:
    """Runs the body, which returns, on the low half of an argument of this call."""
    load: Program = [(_LD_ABS, 0, 0, _ARGS_OFFSET + 8 * argument)]
    return [(_JEQ, 0, _reach(len(load) + len(body)), number), *load, *body]


def _one_of(values: Sequence[int]) -> Program:
    checks: Program = []
    for value in values:
        checks += [(_JEQ, 0, 1, value), *_ALLOW]
    return [*checks, *_DENY]


def _ranges(numbers: Collection[int]) -> list[tuple[int, int]]:
    """Groups consecutive numbers into (first, last)."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _search(ranges: Sequence[tuple[int, int]]) -> Program:
    """Returns the instructions that allow the numbers in any of the ranges and deny the rest."""
    if not ranges:
        return _DENY
    if len(ranges) == 1:
        first, last = ranges[0]
        return [(_JGE, 0, 2, first), (_JGE, 1, 0, last + 1), *_ALLOW, *_DENY]
    middle = len(ranges) // 2
    lower, upper = _search(ranges[:middle]), _search(ranges[middle:])
    if len(lower) <= 255:
        return [(_JGE, len(lower), 0, ranges[middle][0]), *lower, *upper]
    return [(_JGE, 0, 1, ranges[middle][0]), (_JA, 0, 0, len(lower)), *lower, *upper]


def _reach(distance: int) -> int:
    if distance > 255:
        raise ValueError("a jump of the filter is too long")
    return distance


def assemble(program: Program) -> bytes:
    """Encodes instructions in the kernel's form. Raises ValueError over the kernel's limit of 4096."""
    if len(program) > 4096:
        raise ValueError("the filter is too long")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def profile(extra: Collection[str] = (), machine: str | None = None) -> dict[str, Any]:
    """Returns the policy in the form of container engines (OCI runtime specification, "Seccomp").

    Raises CreationDenied.
    """
    compile_policy(extra, machine)
    conditional = {"clone", "personality", "socket"}
    absent = {"clone3", "io_uring_setup"} - {*_table()["allow"], *extra}
    existing = set(_table()["numbers"])
    names = sorted((existing & {*_table()["allow"], *extra}) - conditional)
    one_of = {"personality": PERSONALITIES, "socket": SOCKET_FAMILIES}
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "syscalls": [
            {"names": names, "action": "SCMP_ACT_ALLOW"},
            {
                "names": ["clone"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": NAMESPACE_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
            },
            *(
                {
                    "names": [name],
                    "action": "SCMP_ACT_ALLOW",
                    "args": [{"index": 0, "value": value, "op": "SCMP_CMP_EQ"}],
                }
                for name, values in one_of.items()
                for value in values
            ),
            *({"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS} for name in sorted(absent)),
        ],
    }
