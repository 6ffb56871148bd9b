"""Messages about states and policies, byte by byte; those expected are what ``ip xfrm`` of iproute2 6.1 sends."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, ClassVar, Self

import pytest

from ai.backend.plugin.node import ipsec
from ai.backend.plugin.node.ipsec import Ipsec, SecuredLine

MARK = 7777
LINE = SecuredLine(
    local=("192.168.77.1", 4790), peer=("192.168.77.2", 4791), key_out=bytes(range(32)), key_in=bytes(range(1, 33))
)
FOREVER = "ff" * 32 + "00" * 64
STATE = (
    "00" * 56  # any packet, as the policies choose
    + "c0a84d02" + "00" * 12 + "{spi}" + "32000000"  # the target, the number, ESP
    + "c0a84d01" + "00" * 12  # the source
    + FOREVER
    + "00" * 12
    + "00000000611e00000200000080" + "00" * 7  # the mark, IPv4, transport, extended numbers
    + "60001200" + b"rfc4106(gcm(aes))".hex().ljust(128, "0") + "a000000080000000" + bytes(range(20)).hex()
    + "1c00170004000000" + "00" * 16 + "80000000"  # a window of 128 packets
)  # fmt: skip
SELECTOR = "c0a84d02" + "00" * 12 + "c0a84d01" + "00" * 12 + "12b7ffff000000000200202011" + "00" * 11
TEMPLATE = (
    "44000500"
    "c0a84d02" + "00" * 12 + "000000003200000002000000"
    "c0a84d01" + "00" * 12 + "611e000000000000" + "ff" * 12
)  # fmt: skip


class Deaf(Ipsec):
    """A kernel that keeps what it is told, and answers with it."""

    def __init__(self, mark: int = MARK) -> None:
        self.mark = mark

    told: ClassVar[list[tuple[int, bytes]]] = []
    held: ClassVar[dict[int, list[bytes]]] = {}

    def __enter__(self) -> Self:
        return self

    def close(self) -> None: ...

    def do(self, kind: int, body: bytes, flags: int = 0) -> None:
        self.told.append((kind, body))
        if kind == 0x10:
            self.held.setdefault(0x12, []).append(body)
        elif kind in (0x13, 0x19):
            same = [p for p in self.held.setdefault(0x15, []) if (p[:56], p[160]) == (body[:56], body[160])]
            if same and kind == 0x13:
                raise FileExistsError
            self.held[0x15] = [p for p in self.held[0x15] if p not in same] + [body]
        elif kind == 0x11:
            self.held[0x12] = [s for s in self.held[0x12] if s[56:60] + s[72:76] != body[:4] + body[16:20]]
        elif kind == 0x14:
            self.held[0x15] = [p for p in self.held[0x15] if (p[:56], p[160]) != (body[:56], body[60])]

    def ask(self, kind: int, flags: int, body: bytes) -> list[tuple[int, bytes]]:
        return [(kind - 2, answer) for answer in self.held.get(kind, [])]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> type[Deaf]:
    monkeypatch.setattr(ipsec, "Ipsec", Deaf)
    Deaf.told, Deaf.held = [], {}
    return Deaf


def test_a_state_is_told_as_iproute_tells_it(kernel: type[Deaf]) -> None:
    out, _ = ipsec._states(LINE)
    Deaf().add_state(out)
    ((kind, body),) = kernel.told
    assert kind == 0x10
    assert body.hex() == STATE.format(spi=f"{out.spi:08x}")
    assert out.spi >= 256, "smaller ones are reserved"


def test_a_policy_is_told_as_iproute_tells_it(kernel: type[Deaf]) -> None:
    out, *_ = ipsec._policies(LINE)
    Deaf().set_policy(out)
    ((kind, body),) = kernel.told
    assert kind == 0x13
    assert len(body) == 168 + 68
    assert body[:56].hex() == SELECTOR
    assert body[56:152].hex() == FOREVER
    assert body[152:168].hex() == "00000000000000000100000000000000", "outwards, allowed"
    assert body[168:].hex() == TEMPLATE


def test_only_what_is_wanted_stays_and_others_are_let_alone(kernel: type[Deaf]) -> None:
    foreign = Deaf(mark=1)
    for state in ipsec._states(replace(LINE, key_out=b"f" * 32, key_in=b"g" * 32)):
        foreign.add_state(state)
    other = SecuredLine(local=LINE.local, peer=("192.168.77.3", 4790), key_out=b"o" * 32, key_in=b"i" * 32)
    ipsec.apply(MARK, [LINE, other])
    assert (len(Deaf().states()), len(Deaf().policies())) == (4, 7), "one block for the port, and one for each peer"
    kernel.told.clear()
    ipsec.apply(MARK, [LINE, other])
    assert kernel.told == [], "all is there"
    Deaf().remove_policy(Deaf().policies()[0])
    ipsec.apply(MARK, [LINE, other])
    assert len(Deaf().policies()) == 7
    ipsec.apply(MARK, [other])
    assert {policy.port for policy in Deaf().policies()} == {4790}
    ipsec.apply(MARK, [])
    assert (Deaf().states(), Deaf().policies()) == ([], [])
    assert len(foreign.states()) == 2


def test_a_port_of_ours_may_serve_something_else_in_another_life(kernel: type[Deaf]) -> None:
    ipsec.apply(MARK, [LINE])
    plain = replace(LINE, key_out=b"", key_in=b"")
    ipsec.apply(MARK, [plain])
    assert set(Deaf().policies()) == set(ipsec._policies(plain))
    assert Deaf().states() == []


def test_agents_of_one_node_do_not_undo_each_other(kernel: type[Deaf]) -> None:
    """What goes out to a peer's port cannot be told apart: the second is refused, so that the first is never bare."""
    ipsec.apply(MARK, [LINE])
    before = list(kernel.held[0x15])
    second = replace(LINE, local=(LINE.local[0], 4792), key_out=b"o" * 32, key_in=b"i" * 32)
    with pytest.raises(FileExistsError, match=r"another agent .* to 192\.168\.77\.2, port 4791"):
        ipsec.apply(MARK + 2, [second])
    ipsec.apply(MARK + 2, [])
    assert kernel.held[0x15] == before
    in_plain = replace(second, key_out=b"", key_in=b"")
    ipsec.apply(MARK + 2, [in_plain])
    ipsec.apply(MARK + 2, [])
    assert kernel.held[0x15] == before


def test_both_ends_agree_and_keys_do_not_show() -> None:
    there = SecuredLine(local=LINE.peer, peer=LINE.local, key_out=LINE.key_in, key_in=LINE.key_out)
    assert set(ipsec._states(LINE)) == set(ipsec._states(there))
    assert "key" not in repr(LINE)


def test_without_root_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in ipsec.why_none(MARK)


def test_a_kernel_without_it_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poor(Deaf):
        def do(self, kind: int, body: bytes, flags: int = 0) -> Any:
            raise OSError(93, "Protocol not supported") if kind == 0x10 else ProcessLookupError

    monkeypatch.setattr(ipsec, "Ipsec", Poor)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert ipsec.why_none(MARK).endswith("(IPsec: ESP with AES-GCM): Protocol not supported")
