"""Networks over several agents: what they are given, that no two share anything, and what each agent is told."""

from __future__ import annotations

import random
from ipaddress import IPv4Network
from typing import Any

import pytest

from ai.backend.common.errors import InsufficientResource, UnsupportedResource
from ai.backend.common.ids import AgentId
from ai.backend.common.states import ClusterMode, KernelEventReason, KernelStatus, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.common.structs import replace as replace_struct
from ai.backend.common.wire.agent import OverlayInfo
from ai.backend.common.wire.reports import OverlayReport
from ai.backend.core.lifecycle.events import SessionCreationFailed
from ai.backend.manager.agents.capabilities import (
    ENCRYPTED,
    ENCRYPTION,
    MULTI_NODE,
    agents_with_networks,
    features_of,
    needs_of,
)
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.agents.registration import admit_overlay
from ai.backend.manager.secrets.sealer import Sealer, new_key
from ai.backend.manager.sessions.lifecycle.kernel_spec import kernel_spec
from ai.backend.manager.sessions.model import Session, SessionNetwork
from ai.backend.manager.sessions.networks import assign_network, needs_overlay
from ai.backend.manager.sessions.settings import SessionSettings
from ai.backend.manager.sessions.transitions import advance
from tests.contract.store.builders import NOW, make_agent, make_session

SETTINGS = SessionSettings()


def agent(number: int, **changes: Any) -> Agent:
    told = {"address": f"192.0.2.{number}", "mtu": 1500, **changes}
    return make_agent(f"agent-{number}", overlay=OverlayReport(**told))


def on(agents: list[int], **changes: Any) -> Session:
    """A session with a kernel on each of the agents of these numbers."""
    session = make_session(size=len(agents), cluster_mode=ClusterMode.MULTI_NODE, **changes)
    kernels = tuple(
        replace(k, agent=AgentId(f"agent-{n}"), cluster_hostname=f"h{i}", status=KernelStatus.SCHEDULED, attempt=1)
        for i, (n, k) in enumerate(zip(agents, session.kernels, strict=True))
    )
    return replace(session, kernels=kernels, status=SessionStatus.SCHEDULED)


def settled(session: Session, taken: list[tuple[int, SessionNetwork]] | None = None, **changes: Any) -> Session:
    settings = SETTINGS.model_copy(update=changes)
    agents = {a.id: a for a in (agent(n, mtu=1500 if n != 2 else 1400) for n in range(1, 9))}
    vni, network = assign_network(session, agents, taken or [], settings, random.Random(1))
    return replace(session, vni=vni, network=network)


def derive(purpose: bytes, key_id: str) -> bytes:
    return b"<" + purpose + b" by " + key_id.encode() + b">"


def test_every_address_is_of_one_kernel_or_one_agent() -> None:
    session = settled(on([1, 2, 1, 3]))
    network = session.network
    assert network is not None
    inside = [*network.addresses.values(), *(node.gateway for node in network.nodes.values())]
    assert len(set(inside)) == 7
    hosts = {str(host) for host in IPv4Network(network.subnet).hosts()}
    assert set(inside) <= hosts
    assert network.mtu == 1350, "of the agent with the smallest packets"
    assert network.places == {"h0": "agent-1", "h1": "agent-2", "h2": "agent-1", "h3": "agent-3"}


def test_living_sessions_share_neither_numbers_nor_addresses() -> None:
    taken: list[tuple[int, SessionNetwork]] = []
    for size in (2, 5, 8, 3, 2, 8, 8):
        session = settled(on(list(range(1, size + 1))), taken, network_pool=IPv4Network("10.9.0.0/24"))
        assert session.vni is not None
        assert session.network is not None
        ours = IPv4Network(session.network.subnet)
        assert not any(ours.overlaps(IPv4Network(other.subnet)) for _, other in taken)
        taken.append((session.vni, session.network))
    assert len({vni for vni, _ in taken}) == len(taken)
    with pytest.raises(InsufficientResource, match=r"no addresses of 10\.9\.8\.0/28 are left"):
        settled(
            on([1, 2]),
            [(5, replace(taken[0][1], subnet="10.9.8.0/28"))],
            network_pool=IPv4Network("10.9.8.0/28"),
        )
    with pytest.raises(InsufficientResource, match="no room for a network of 16 addresses"):
        settled(on(list(range(1, 9))), network_pool=IPv4Network("10.9.8.0/28"))
    with pytest.raises(InsufficientResource, match="from 7 to 7 are in use"):
        settled(on([1, 2]), [(7, taken[0][1])], network_numbers=(7, 7))


def test_an_agent_that_takes_no_part_any_more_is_not_joined() -> None:
    agents = {a.id: a for a in (agent(1), agent(2, why_not="no vxlan"))}
    with pytest.raises(InsufficientResource, match="agent-2 does not support"):
        assign_network(on([1, 2]), agents, [], SETTINGS, random.Random(1))


def test_all_agents_are_told_the_same_but_for_their_place() -> None:
    session = settled(on([1, 2, 1], resource_opts={ENCRYPTION: "true"}))
    first, second, third = (kernel_spec(session, k, derive=derive).cluster.overlay for k in session.kernels)
    assert first is not None
    assert second is not None
    assert first == third, "of one agent"
    assert (first.vni, first.subnet, first.secret) == (second.vni, second.subnet, second.secret)
    assert first.places == {"h1": "agent-2"}
    assert second.places == {"h0": "agent-1", "h2": "agent-1"}
    there, here = first.peers["agent-2"], second.peers["agent-1"]
    assert (there.key_out, there.key_in) == (here.key_in, here.key_out)
    assert there.key_out != there.key_in
    assert first.mtu == 1400 - 50 - 40
    assert (first.local.port, there.port) == (4790, 4790), "apart from what is not encrypted"
    assert "secret" not in repr(first)
    assert str(there.key_out) not in repr(first.peers)
    plain = settled(on([1, 2]))
    told = kernel_spec(plain, plain.main, derive=derive).cluster.overlay
    assert told is not None
    assert {(peer.key_in, peer.key_out) for peer in told.peers.values()} == {(b"", b"")}


def test_an_agent_of_an_earlier_placement_has_no_secret_of_a_later_one() -> None:
    session = settled(on([1, 2]))
    later = replace(session, vni=(session.vni or 0) + 1)
    first, second = (kernel_spec(s, s.main, derive=derive).cluster.overlay for s in (session, later))
    assert first is not None
    assert second is not None
    assert first.secret != second.secret


def test_keys_belong_to_two_agents_wherever_they_say_they_are() -> None:
    told = [OverlayReport(address="192.0.2.1"), OverlayReport(address="192.0.2.2"), OverlayReport(address="192.0.2.2")]
    agents = {a.id: a for a in (make_agent(f"agent-{n}", overlay=o) for n, o in enumerate(told, 1))}

    def keys(other: int) -> set[bytes]:
        session = on([1, other], resource_opts={ENCRYPTION: "true"})
        vni, network = assign_network(session, agents, [], SETTINGS, random.Random(1))
        overlay = kernel_spec(replace(session, vni=vni, network=network), session.main, derive=derive).cluster.overlay
        assert overlay is not None
        (peer,) = overlay.peers.values()
        return {peer.key_in, peer.key_out}

    assert not keys(2) & keys(3)


def test_no_key_comes_again_once_a_line_was_not_needed() -> None:
    rng = random.Random(1)
    agents = {a.id: a for a in (agent(n) for n in range(1, 4))}

    def begun(on_these: list[int], taken: list[Session]) -> Session:
        session = on(on_these, resource_opts={ENCRYPTION: "true"})
        networks = [(s.vni or 0, s.network) for s in taken if s.network]
        vni, network = assign_network(session, agents, networks, SETTINGS, rng)
        return replace(session, vni=vni, network=network)

    def keys(session: Session) -> tuple[bytes, bytes]:
        overlay = kernel_spec(session, session.main, derive=derive).cluster.overlay
        assert overlay is not None
        return overlay.peers["agent-2"].key_out, overlay.peers["agent-2"].key_in

    first = begun([1, 2], [])
    wider = begun([3, 1, 2], [first])
    wider = replace(wider, kernels=wider.kernels[1:])
    assert keys(first) == keys(wider), "a line that is used goes on"
    again, fresh = begun([1, 2], [wider]), begun([1, 2], [])
    assert keys(again) == keys(first), "also when the session that began it is over"
    assert not set(keys(fresh)) & set(keys(first))


def test_a_new_sealing_key_changes_nothing_of_what_is_settled() -> None:
    old, new = new_key(), new_key()
    agents = {a.id: a for a in (agent(n) for n in range(1, 3))}

    def begun(sealer: Sealer, taken: list[tuple[int, SessionNetwork]]) -> Session:
        session = on([1, 2], resource_opts={ENCRYPTION: "true"})
        vni, network = assign_network(session, agents, taken, SETTINGS, random.Random(), sealer.newest_id())
        return replace(session, vni=vni, network=network)

    def told(session: Session, number: int, sealer: Sealer) -> OverlayInfo:
        overlay = kernel_spec(session, session.kernels[number], derive=sealer.derive).cluster.overlay
        assert overlay is not None
        return overlay

    before, after = Sealer([old]), Sealer([new, old])
    first = begun(before, [])
    here, there = told(first, 0, before), told(first, 1, after)  # the manager starts again in between
    assert here.secret == there.secret
    assert here.peers["agent-2"].key_out == there.peers["agent-1"].key_in != b""
    assert first.network is not None
    second = told(begun(after, [(first.vni or 0, first.network)]), 0, after)
    assert second.peers["agent-2"].key_out == here.peers["agent-2"].key_out, "the line is in use"
    third = begun(after, [])
    assert told(third, 0, after).secret == told(third, 0, Sealer([new])).secret, "new ones need the old key no more"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"address": "192.0.2.01"}, "'192.0.2.01' is no IPv4 address"),
        ({"address": "3221225985"}, "'3221225985' is no IPv4 address"),
        ({"address": "0.0.0.0"}, "0.0.0.0 is no address of one node"),
        ({"address": "224.0.0.1"}, "224.0.0.1 is no address of one node"),
        ({"port": 0}, "its two ports must differ, and be from 1 to 65535"),
        ({"port": 4790}, "its two ports must differ, and be from 1 to 65535"),
    ],
)
def test_a_place_that_nobody_can_be_at_is_not_told_to_others(changes: dict[str, Any], why: str) -> None:
    told = replace_struct(OverlayReport(address="192.0.2.1"), **changes)
    assert admit_overlay(told, {AgentId("agent-2"): OverlayReport(address="192.0.2.1")}).why_not == why


def test_one_agent_of_an_address_takes_part_in_encrypted_networks() -> None:
    first, second = OverlayReport(address="192.0.2.1"), OverlayReport(address="192.0.2.1", port=5, encrypted_port=6)
    taken = admit_overlay(second, {AgentId("agent-1"): first})
    assert taken == replace_struct(second, why_plain="agent agent-1 encrypts at 192.0.2.1, and one at a time can")
    assert admit_overlay(first, {AgentId("agent-2"): taken}) == first
    assert admit_overlay(second, {AgentId("agent-1"): replace_struct(first, why_plain="no ESP")}) == second


def test_of_two_agents_at_one_place_the_first_takes_part() -> None:
    first, second = OverlayReport(address="192.0.2.1"), AgentId("agent-2")
    taken = admit_overlay(OverlayReport(address="192.0.2.1", port=4790, encrypted_port=4791), {second: first})
    assert taken.why_not.startswith("agent agent-2 is at 192.0.2.1 with the same port"), "4790 is the other's"
    assert admit_overlay(first, {second: replace_struct(first, address="192.0.2.2")}) == first
    assert admit_overlay(first, {second: replace_struct(first, why_not="no vxlan")}) == first


def test_a_session_that_goes_back_gives_its_network_back() -> None:
    session = settled(on([1, 2]))
    failed = SessionCreationFailed(
        kernel_ids=frozenset({session.main.id}), reason=KernelEventReason.CREATION_DEFERRED, retryable=True
    )
    change = advance(session, failed, now=NOW)
    assert change is not None
    assert change.new.status is SessionStatus.PENDING
    assert (change.new.vni, change.new.network) == (None, None)


def test_who_is_chosen_and_what_is_told_to_those_who_cannot_have_one() -> None:
    multi = ClusterMode.MULTI_NODE
    assert needs_of(2, multi, "") == {MULTI_NODE}
    assert needs_of(2, multi, "", is_encrypted_network=True) == {ENCRYPTED}
    able, plain, unable = agent(1), agent(2, why_plain="no ESP"), agent(3, why_not="no vxlan")
    silent = make_agent("agent-4", overlay=None)
    assert {MULTI_NODE, ENCRYPTED} <= features_of(able)
    assert ENCRYPTED not in features_of(plain)
    everybody = [able, plain, unable, silent]
    assert agents_with_networks(everybody, "default", needs_of(2, multi, "")) == [able, plain]
    assert agents_with_networks(everybody, "default", needs_of(2, multi, "", is_encrypted_network=True)) == [able]
    with pytest.raises(UnsupportedResource, match="agent-3: no vxlan; agent-4: it does not report an address") as told:
        agents_with_networks([unable, silent], "default", needs_of(2, multi, ""))
    assert told.value.data["clusterMode"] == "not possible here"
    with pytest.raises(UnsupportedResource, match="an encrypted network over several nodes: agent-2: no ESP"):
        agents_with_networks([plain], "default", needs_of(2, multi, "", is_encrypted_network=True))
    assert not needs_overlay(make_session(cluster_mode=multi))
    assert needs_overlay(make_session(size=2, cluster_mode=multi))
