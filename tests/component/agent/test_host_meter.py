"""Disks and networks of a node, from recorded files."""

from __future__ import annotations

from pathlib import Path

from ai.backend.agent.metrics.host import HostMeter
from ai.backend.plugin.accelerator import Measurement, MetricKind

HEAD = (
    "Inter-|   Receive |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes packets\n"
)


def _interface(name: str, received: int, sent: int) -> str:
    return f"{name:>6}: {received} 9 0 0 0 0 0 0 {sent} 8 0 0 0 0 0 0\n"


def _meter(tmp_path: Path, *, mounts: str = "", net: str = "", cards: tuple[str, ...] = ()) -> HostMeter:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/net").mkdir()
    (tmp_path / "proc/self/mountinfo").write_text(mounts)
    (tmp_path / "proc/net/dev").write_text(net)
    for name in cards:
        (tmp_path / "sys/class/net" / name / "device").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    return HostMeter(tmp_path / "data", proc=tmp_path / "proc", sys=tmp_path / "sys")


def _mount(source: str, point: Path | str, fstype: str = "ext4") -> str:
    return f"30 24 0:26 / {point} rw - {fstype} {source} rw\n"


def _of(meter: HostMeter, key: str) -> dict[str | None, Measurement]:
    return {m.device_id: m for m in meter.measure() if m.key == key}


def test_a_file_system_counts_once_however_often_it_is_mounted(tmp_path: Path) -> None:
    mounts = _mount("proc", "/proc", "proc") + _mount("/dev/vda1", tmp_path) + _mount("/dev/vdb1", "/no/such")
    disks = _of(_meter(tmp_path, mounts=mounts + _mount("/dev/vda2", tmp_path / "data")), "disk")
    assert list(disks) == ["vda1"]
    assert disks["vda1"].capacity is not None
    assert 0 < disks["vda1"].value <= disks["vda1"].capacity


def test_the_file_system_of_the_data_directory_always_counts(tmp_path: Path) -> None:
    assert list(_of(_meter(tmp_path, mounts=_mount("overlay", "/", "overlay")), "disk")) == ["data"]


def test_cards_are_counted_and_nothing_behind_them_again(tmp_path: Path) -> None:
    net = HEAD + _interface("lo", 1, 2) + _interface("eth0", 100, 200) + _interface("br-1", 100, 200)
    meter = _meter(tmp_path, net=net + "eth1: what is this\n", cards=("eth0", "eth1"))
    assert {d: m.value for d, m in _of(meter, "net_rx").items()} == {"eth0": 100.0}
    assert {d: m.value for d, m in _of(meter, "net_tx").items()} == {"eth0": 200.0}
    assert {(m.kind, m.unit_hint) for m in _of(meter, "net_tx").values()} == {(MetricKind.RATE, "bps")}


def test_without_cards_every_interface_but_the_loopback_counts(tmp_path: Path) -> None:
    net = HEAD + _interface("lo", 1, 2) + _interface("veth0", 5, 6)
    assert {d: m.value for d, m in _of(_meter(tmp_path, net=net), "net_rx").items()} == {"veth0": 5.0}
