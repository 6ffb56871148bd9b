"""Messages about states and policies, byte by byte; those expected are what ``ip xfrm`` of iproute2 6.1 sends."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Self

import pytest

from ai.backend.common.structs import replace
from ai.backend.node.linux import ipsec, netlink_socket
from ai.backend.node.linux.ipsec import Ipsec, SecuredLine
from ai.backend.node.linux.netlink_socket import (
    DELETE_POLICY,
    DELETE_STATE,
    GET_STATE,
    NEW_POLICY,
    NEW_STATE,
    UPDATE_POLICY,
)

MARK = 7777
LINE = SecuredLine(
    local=("192.168.77.1", 4790), peer=("192.168.77.2", 4791), key_out=bytes(range(32)), key_in=bytes(range(1, 33))
)
NO_LIFETIME_LIMITS = "ff" * 32 + "00" * 64
STATE = (
    "00" * 56  # any packet, as the policies choose
    + "c0a84d02" + "00" * 12 + "{spi}" + "32000000"  # the target, the number, ESP
    + "c0a84d01" + "00" * 12  # the source
    + NO_LIFETIME_LIMITS
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


class FakeKernel(Ipsec):
    """Keeps the states and policies that it is sent, and replies with them, in the kernel's own format."""

    def __init__(self, mark: int = MARK) -> None:
        self.mark = mark
        self._library = netlink_socket

    sent: ClassVar[list[tuple[int, bytes]]] = []
    states_by_id: ClassVar[dict[bytes, bytes]] = {}
    policies_by_id: ClassVar[dict[bytes, bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def _request(self, kind: int, message: Any, flags: int = 0) -> None:
        message["header"]["type"] = kind
        message.encode()
        data = bytes(message.data)
        body = data[16:]
        self.sent.append((kind, body))
        if kind == NEW_STATE:
            assert flags == 0x600, "create and exclusive"
            self.states_by_id[body[56:60] + body[72:76]] = data
        elif kind in (NEW_POLICY, UPDATE_POLICY):
            place = body[:56] + body[160:161]
            if kind == NEW_POLICY and place in self.policies_by_id:
                raise FileExistsError
            self.policies_by_id[place] = data
        elif kind == DELETE_STATE:
            del self.states_by_id[body[:4] + body[16:20]]
        elif kind == DELETE_POLICY:
            del self.policies_by_id[body[:56] + body[60:61]]

    def _list_entries(self, request: int, kind: int) -> list[Any]:
        is_state = request == GET_STATE
        made = netlink_socket.StateMessage if is_state else netlink_socket.PolicyMessage
        replies = [made(bytearray(data)) for data in (self.states_by_id if is_state else self.policies_by_id).values()]
        for reply in replies:
            reply.decode()
        return replies


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> type[FakeKernel]:
    monkeypatch.setattr(ipsec, "Ipsec", FakeKernel)
    FakeKernel.sent, FakeKernel.states_by_id, FakeKernel.policies_by_id = [], {}, {}
    return FakeKernel


def test_the_message_of_a_state_equals_that_of_iproute(kernel: type[FakeKernel]) -> None:
    out, _ = ipsec.states_of(LINE)
    FakeKernel().add_state(out)
    ((kind, body),) = kernel.sent
    assert kind == 0x10
    assert body.hex() == STATE.format(spi=f"{out.spi:08x}")
    assert out.spi >= 256, "smaller ones are reserved"


def test_the_message_of_a_policy_equals_that_of_iproute(kernel: type[FakeKernel]) -> None:
    out, *_ = ipsec.policies_of(LINE)
    FakeKernel().set_policy(out)
    ((kind, body),) = kernel.sent
    assert kind == 0x13
    assert len(body) == 168 + 68
    assert body[:56].hex() == SELECTOR
    assert body[56:152].hex() == NO_LIFETIME_LIMITS
    assert body[152:168].hex() == "00000000000000000100000000000000", "outwards, allowed"
    assert body[168:].hex() == TEMPLATE


def test_only_what_is_wanted_stays_and_others_are_let_alone(kernel: type[FakeKernel]) -> None:
    foreign = FakeKernel(mark=1)
    for state in ipsec.states_of(replace(LINE, key_out=b"f" * 32, key_in=b"g" * 32)):
        foreign.add_state(state)
    other = SecuredLine(local=LINE.local, peer=("192.168.77.3", 4790), key_out=b"o" * 32, key_in=b"i" * 32)
    ipsec.apply(MARK, [LINE, other])
    assert (len(FakeKernel().states()), len(FakeKernel().policies())) == (4, 7), (
        "one block for the port, and one for each peer"
    )
    kernel.sent.clear()
    ipsec.apply(MARK, [LINE, other])
    assert kernel.sent == [], "all is there"
    FakeKernel().remove_policy(FakeKernel().policies()[0])
    ipsec.apply(MARK, [LINE, other])
    assert len(FakeKernel().policies()) == 7
    ipsec.apply(MARK, [other])
    assert {policy.port for policy in FakeKernel().policies()} == {4790}
    ipsec.apply(MARK, [])
    assert (FakeKernel().states(), FakeKernel().policies()) == ([], [])
    assert len(foreign.states()) == 2


def test_a_port_of_ours_may_serve_something_else_in_another_life(kernel: type[FakeKernel]) -> None:
    ipsec.apply(MARK, [LINE])
    plain = replace(LINE, key_out=b"", key_in=b"")
    ipsec.apply(MARK, [plain])
    assert set(FakeKernel().policies()) == set(ipsec.policies_of(plain))
    assert FakeKernel().states() == []


def test_agents_of_one_node_do_not_undo_each_other(kernel: type[FakeKernel]) -> None:
    """What goes out to a peer's port cannot be told apart: the second is refused, so that the first is never bare."""
    ipsec.apply(MARK, [LINE])
    before = dict(kernel.policies_by_id)
    second = replace(LINE, local=(LINE.local[0], 4792), key_out=b"o" * 32, key_in=b"i" * 32)
    with pytest.raises(FileExistsError, match=r"another agent .* to 192\.168\.77\.2, port 4791"):
        ipsec.apply(MARK + 2, [second])
    ipsec.apply(MARK + 2, [])
    assert kernel.policies_by_id == before
    in_plain = replace(second, key_out=b"", key_in=b"")
    ipsec.apply(MARK + 2, [in_plain])
    ipsec.apply(MARK + 2, [])
    assert kernel.policies_by_id == before


def test_both_ends_agree_and_keys_do_not_show() -> None:
    there = SecuredLine(local=LINE.peer, peer=LINE.local, key_out=LINE.key_in, key_in=LINE.key_out)
    assert set(ipsec.states_of(LINE)) == set(ipsec.states_of(there))
    assert "key" not in repr(LINE)


def test_without_root_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in ipsec.why_no_ipsec(MARK)


def test_a_kernel_without_it_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poor(FakeKernel):
        def _request(self, kind: int, message: Any, flags: int = 0) -> None:
            raise OSError(93, "Protocol not supported") if kind == 0x10 else ProcessLookupError

    monkeypatch.setattr(ipsec, "Ipsec", Poor)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert ipsec.why_no_ipsec(MARK).endswith("(IPsec: ESP with AES-GCM): Protocol not supported")
