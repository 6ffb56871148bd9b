"""The port of the API that ``up`` chooses."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ai.backend.common.errors import Conflict
from ai.backend.standalone.cluster import prepare
from ai.backend.standalone.layout import Layout
from ai.backend.standalone.options import DEFAULT_PORT, UpOptions


def test_port_zero_is_any_free_port_although_the_default_is_taken(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", DEFAULT_PORT))
            other.listen()
        except OSError:
            pass  # another cluster of this machine has it
        cluster, sockets = prepare(layout, UpOptions(port=0, mock="none"))
    for each in sockets:
        each.close()
    assert cluster.port not in (0, DEFAULT_PORT)


def test_clusters_that_start_at_once_have_ranges_of_their_own_for_apps(tmp_path: Path) -> None:
    prepared = []
    for name in ("one", "two"):
        layout = Layout(tmp_path / name)
        layout.make()
        prepared.append(prepare(layout, UpOptions(port=0, mock="none")))
    (first, first_sockets), (second, second_sockets) = prepared
    ranges = [range(low, high + 1) for low, high in (first.app_ports, second.app_ports)]
    assert not set(ranges[0]) & set(ranges[1])
    assert len(ranges[0]) == len(ranges[1]) == 96
    for each in first_sockets:
        each.close()
    again, sockets = prepare(Layout(tmp_path / "one"), UpOptions(port=0, mock="none"))
    assert again.app_ports == first.app_ports
    for each in (*second_sockets, *sockets):
        each.close()


def test_a_second_cluster_finds_another_port_for_its_console(tmp_path: Path) -> None:
    prepared = []
    for name in ("one", "two"):
        layout = Layout(tmp_path / name)
        layout.make()
        prepared.append(prepare(layout, UpOptions(port=0, mock="none")))
    (first, first_sockets), (second, second_sockets) = prepared
    assert first.web_port != second.web_port
    with pytest.raises(Conflict, match="--web-port"):
        prepare(Layout(tmp_path / "two"), UpOptions(port=0, mock="none", web_port=first.web_port))
    for each in (*first_sockets, *second_sockets):
        each.close()
