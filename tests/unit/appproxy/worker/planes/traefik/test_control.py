"""The configuration of Traefik is removed in an order in which no router is left without its gate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

import pytest

from ai.backend.appproxy.worker.planes.traefik import control
from ai.backend.appproxy.worker.planes.traefik.control import TraefikControl
from ai.backend.appproxy.worker.planes.traefik.tree import VERSION_KEY
from ai.backend.common.errors import Unavailable
from ai.backend.infra.config_store.etcd import EtcdConfigStore


class Store:
    def __init__(self) -> None:
        self.writes: list[Mapping[str, str | None]] = []
        self.leased: list[set[str]] = []
        self.has_ended = False
        self.is_away = False

    async def hold_lease(self, lease: int, ttl_s: int) -> bool:
        assert 0 < lease < 2**63
        has_ended, self.has_ended = self.has_ended, False
        return has_ended

    async def write_tree(
        self, root: str, part: Mapping[str, str | None], *, lease: int, leased: Collection[str]
    ) -> None:
        if self.is_away:
            raise Unavailable("etcd is away")
        self.writes.append(part)
        self.leased.append(set(leased))


async def _is_served(self: TraefikControl) -> None:
    """Stands for a Traefik that serves what is written at once."""


async def test_rules_are_removed_before_anything_else_and_the_version_is_written_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "_ONE_WRITE", 3)
    monkeypatch.setattr(TraefikControl, "_wait_until_served", _is_served)
    store = Store()
    traefik = TraefikControl(cast("EtcdConfigStore", store), "worker", "http://127.0.0.1:1")
    routers = {
        f"http/routers/{name}/{part}": "x" for name in "abcd" for part in ("middlewares/0", "rule", "service", "tls")
    }
    await traefik.write(routers)
    store.writes.clear()
    await traefik.write({})
    removed = [key for part in store.writes for key in part]
    assert sorted(removed) == sorted([*routers, VERSION_KEY])
    assert all(key.endswith("/rule") for key in removed[:4])
    assert removed[-1] == VERSION_KEY


async def test_keys_whose_lease_has_ended_are_written_again_until_that_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TraefikControl, "_wait_until_served", _is_served)
    store = Store()
    traefik = TraefikControl(cast("EtcdConfigStore", store), "worker", "http://127.0.0.1:1")
    tcp = {"tcp/routers/a/rule": "x", "tcp/services/a/address": "y"}
    await traefik.write({"http/routers/b/rule": "x", **tcp})
    assert store.leased[-1] == tcp.keys()
    count = len(store.writes)
    await traefik.keep_lease()
    assert len(store.writes) == count
    store.has_ended = store.is_away = True
    with pytest.raises(Unavailable):
        await traefik.keep_lease()
    store.is_away = False
    await traefik.keep_lease()
    assert (store.writes[-1], store.leased[-1]) == (tcp, set(tcp))
    await traefik.keep_lease()
    assert len(store.writes) == count + 1
