"""Networks of sessions as the agent keeps them: guarded from before they are there until after they are gone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast
from uuid import uuid4

import pytest

from ai.backend.agent.kernels.model import KernelRecord
from ai.backend.agent.networks.networks import Networks, needs_network, overlay_of, secured_lines
from ai.backend.common.errors import CreationDenied, WorkloadError
from ai.backend.common.ids import SessionId
from ai.backend.common.states import ClusterMode, KernelStatus, SessionType
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import ClusterInfo, KernelSpec, OverlayInfo, UnderlayPeer
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.node.linux.ipsec import SecuredLine
from ai.backend.plugin.runtime import AbstractRuntime, NetworkView, Overlay


class Runtime:
    """Notes what is made and removed, in one list with what is encrypted."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.kept: list[SessionId] = []
        self.removed_by_others: list[SessionId] = []

    async def create_network(self, session_id: SessionId, hosts: Sequence[str], overlay: Overlay) -> NetworkView:
        self.done.append("made")
        self.kept.append(session_id)
        return NetworkView(session_id=session_id, network_id="net", addresses=overlay.addresses)

    async def remove_network(self, session_id: SessionId) -> None:
        self.done.append("removed")
        self.kept.remove(session_id)

    async def list_networks(self) -> Sequence[SessionId]:
        return tuple(self.kept)

    async def broken_networks(self) -> Sequence[SessionId]:
        return self.removed_by_others

    def secure(self, lines: Collection[SecuredLine]) -> None:
        for what, is_encrypted in (("encrypted", True), ("guarded", False)):
            peers = sorted(line.peer[0] for line in lines if line.is_encrypted == is_encrypted)
            if peers or (is_encrypted and not lines):
                self.done.append(f"{what} {peers}")


def kernel(session: str, peer: str, *, key: bytes = b"k" * 32, **cluster: Any) -> KernelRecord:
    told = OverlayInfo(
        vni=7,
        subnet="10.214.0.0/28",
        gateway="10.214.0.1",
        mtu=1410,
        local=UnderlayPeer(address="192.0.2.1", port=4790),
        addresses={"main1": "10.214.0.3", "sub1": "10.214.0.4"},
        peers={"i-two": UnderlayPeer(address=peer, port=4790, key_out=key, key_in=key)},
        places={"sub1": "i-two"},
    )
    values = {"mode": ClusterMode.MULTI_NODE, "size": 2, "hosts": ["main1", "sub1"], "overlay": told, **cluster}
    spec = KernelSpec(
        kernel_id=str(uuid4()),
        session_id=session,
        attempt=1,
        session_name="one",
        session_type=SessionType.INTERACTIVE,
        image="python",
        architecture="x86_64",
        access_key="AKIA",
        user_id="u",
        user_email="u@x",
        slots={},
        cluster=ClusterInfo(**values),
    )
    return KernelRecord(spec=spec, phase=Phase.RUNNING, status=KernelStatus.RUNNING)


def networks(runtime: Runtime, secure: Any = None) -> Networks:
    return Networks(cast(AbstractRuntime, runtime), secure or runtime.secure)


def test_the_runtime_is_told_what_the_manager_settled() -> None:
    told = kernel(str(uuid4()), "192.0.2.2").spec.cluster.overlay
    assert told is not None
    overlay = overlay_of(told)
    assert (overlay.local, overlay.peers) == (("192.0.2.1", 4790), {"sub1": ("192.0.2.2", 4790)})
    assert not needs_network(kernel(str(uuid4()), "192.0.2.2", overlay=None)), "of a manager that gives none"


async def test_nothing_goes_in_plain_before_or_after() -> None:
    runtime = Runtime()
    held = networks(runtime)
    one, same, other = str(uuid4()), "192.0.2.2", "192.0.2.3"
    first, second, third = kernel(one, same), kernel(one, same), kernel(str(uuid4()), other)
    for record in (first, third):
        await held.join(record)
    assert runtime.done == [f"encrypted ['{same}']", "made", f"encrypted ['{same}', '{other}']", "made"]
    held.hold(second)
    runtime.done.clear()
    await held.leave(first)
    assert runtime.done == [], "another kernel is still in it"
    await held.leave(second)
    await held.leave(third)
    assert runtime.done == ["removed", f"encrypted ['{other}']", "removed", "encrypted []"]


async def test_what_goes_in_plain_is_guarded_where_the_kernel_can() -> None:
    runtime = Runtime()
    held, record = networks(runtime), kernel(str(uuid4()), "192.0.2.2", key=b"")
    await held.join(record)
    await held.leave(record)
    assert runtime.done == ["guarded ['192.0.2.2']", "made", "removed", "encrypted []"]
    told = record.spec.cluster.overlay
    assert told is not None
    (alone,) = secured_lines(replace(told, peers={}, places={}))
    assert (alone.local, alone.peer) == (("192.0.2.1", 4790),) * 2, "nobody sends to one without peers"


async def test_the_next_life_forgets_what_nobody_needs_and_keeps_the_rest() -> None:
    runtime = Runtime()
    held, record = networks(runtime), kernel(str(uuid4()), "192.0.2.2")
    held.hold(record)
    runtime.kept = [record.session_id, SessionId(uuid4())]
    await held.sweep()
    await held.sweep()
    assert runtime.done == ["removed", "encrypted ['192.0.2.2']"]
    runtime.removed_by_others = [record.session_id, SessionId(uuid4())]
    assert await held.broken() == {record.session_id}


async def test_a_kernel_that_cannot_encrypt_makes_no_network() -> None:
    def fail(lines: Collection[SecuredLine]) -> None:
        raise OSError(93, "Protocol not supported")

    runtime = Runtime()
    held = networks(runtime, fail)
    await held.sweep()  # there was nothing to forget
    with pytest.raises(WorkloadError, match="cannot be encrypted: Protocol not supported"):
        await held.join(kernel(str(uuid4()), "192.0.2.2"))
    await held.join(kernel(str(uuid4()), "192.0.2.3", key=b""))
    assert runtime.done == ["made"], "the one that is not encrypted"
    plain = kernel(str(uuid4()), "192.0.2.3", key=b"")
    other = networks(runtime, fail)
    await other.join(plain)
    await other.leave(plain)
    assert runtime.done == ["made", "made", "removed"], "without a guard"
    with pytest.raises(CreationDenied, match="encrypts no networks"):
        await Networks(cast(AbstractRuntime, runtime)).join(kernel(str(uuid4()), "192.0.2.2"))
