"""Plays the relays and runners of pods of KWOK, which run nothing: `python -m bench.relay_swarm FILE`.

Each pod that KWOK calls running gets one TLS connection to the shard, as a relay makes it: with a token, a hello, and
again after it was lost. Its runner is ready at once and ends when it is told to. All are in this one process; what it
costs is no cost of the shard's.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import jwt
import msgspec

from ai.backend.infra.process.memory import collect_rarely
from ai.backend.infra.retry import Backoff
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.configuration import read_kubeconfig
from ai.backend.node.kube_api.objects import Pod
from ai.backend.node.kube_api.reflector import Reflector
from ai.backend.node.kube_api.resources import PODS
from ai.backend.node.relay.framing import encode
from ai.backend.node.relay.pod import FIRST_DELAY_S, MAX_DELAY_S
from ai.backend.node.relay.tls import PROTOCOL, SERVER_NAME
from ai.backend.runtime.kubernetes.manifest import TOKEN_AUDIENCE
from ai.backend.runtime.kubernetes.records import INSTANCE_LABEL

_DIALS = 64
"""How many handshakes are under way at a time."""
_TOKEN_S = 7200
_READY = {"t": "ready", "protocol": 1, "runtime": "python", "version": "3", "features": ["query"], "problem": None}


class SwarmSettings(msgspec.Struct, kw_only=True):
    """The settings of the process, as JSON. ``signing_key`` is the cluster's, for tokens of service accounts."""

    kubeconfig: str
    namespace: str
    host: str
    port: int
    authority: str
    signing_key: str


class _Relay(asyncio.Protocol):
    """Plays the relay and the runner of one pod."""

    def __init__(self, swarm: Swarm, pod: Pod) -> None:
        self._swarm = swarm
        self._pod = pod
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._begun: dict[str, Any] | None = None
        self._epoch = -1
        self._ended: dict[str, Any] | None = None
        self._lost = asyncio.Event()
        self.is_wanted = True

    async def run(self) -> None:
        """Stays connected until the pod is gone."""
        delay_s = FIRST_DELAY_S
        while self.is_wanted:
            self._lost.clear()
            self._buffer.clear()
            try:
                async with self._swarm.dials:
                    if self.is_wanted:
                        await self._swarm.dial(self)
            except OSError:
                await asyncio.sleep(delay_s * (0.5 + random.random()))
                delay_s = min(2 * delay_s, MAX_DELAY_S)
                continue
            await self._lost.wait()
            delay_s = FIRST_DELAY_S
            if self.is_wanted:
                await asyncio.sleep(FIRST_DELAY_S * random.random())

    def stop(self) -> None:
        self.is_wanted = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        meta = self._pod.metadata
        self._send(
            {
                "t": "hello",
                "protocol": PROTOCOL,
                "role": "relay",
                "token": self._swarm.token(self._pod),
                "pod": f"{meta.namespace}/{meta.name}",
                "epoch": self._epoch,
                "begun": self._begun,
                "waiting": True,
                "ended": self._ended,
            }
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < 4 + size:
                return
            message = msgspec.json.decode(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        kind = message.get("t")
        if kind == "begin":
            self._begun = {"t": "begun"}
            self._send(self._begun)
        elif kind == "attach":
            self._epoch = int(message["epoch"])
            self._send(
                {"t": "attached", "protocol": PROTOCOL, "first_seq": 1, "last_seq": 1, "alive": True, "exit": None}
            )
            if int(message["last_seq"]) < 1:
                self._send({**_READY, "seq": 1})
        elif kind == "end" and self._ended is None:
            self._ended = {"t": "ended", "code": 0, "signal": None, "reason": message.get("reason", ""), "last_seq": 1}
            self._send(self._ended)
        elif kind == "dismiss":
            self.stop()

    def _send(self, message: dict[str, Any]) -> None:
        if self._transport is not None:
            self._transport.write(encode(message))


class Swarm:
    """The relays of all running pods of a namespace."""

    def __init__(self, settings: SwarmSettings, api: KubeApi, key_id: str, issuer: str) -> None:
        self._settings = settings
        self._key_id, self._issuer = key_id, issuer
        self._key = Path(settings.signing_key).read_text()
        self._context = ssl.create_default_context(cafile=settings.authority)
        self._relays: dict[str, tuple[_Relay, asyncio.Task[None]]] = {}
        self.dials = asyncio.Semaphore(_DIALS)
        self.pods: Reflector[Pod] = Reflector(
            api, PODS, settings.namespace, label_selector=INSTANCE_LABEL, on_change=self._on_pod
        )

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        pod = after or before
        assert pod is not None
        uid = pod.metadata.uid
        if after is None:
            relay, _ = self._relays.pop(uid, (None, None))
            if relay is not None:
                relay.stop()
        elif after.status.phase == "Running" and uid not in self._relays:
            new = _Relay(self, after)
            self._relays[uid] = new, asyncio.create_task(new.run())

    async def dial(self, relay: _Relay) -> None:
        await asyncio.get_running_loop().create_connection(
            lambda: relay, self._settings.host, self._settings.port, ssl=self._context, server_hostname=SERVER_NAME
        )

    def token(self, pod: Pod) -> str:
        """Returns a token as the kubelet gets it of the API server for a projected volume."""
        meta, now = pod.metadata, int(time.time())
        account = {"name": "default", "uid": "0"}
        names = {"namespace": meta.namespace, "pod": {"name": meta.name, "uid": meta.uid}, "serviceaccount": account}
        claims = {"iss": self._issuer, "aud": [TOKEN_AUDIENCE], "exp": now + _TOKEN_S, "iat": now, "nbf": now}
        body = {**claims, "kubernetes.io": names, "sub": f"system:serviceaccount:{meta.namespace}:default"}
        return jwt.encode(body, self._key, algorithm="ES256", headers={"kid": self._key_id})


async def run(settings: SwarmSettings) -> None:
    """Plays until it is cancelled."""
    api = KubeApi(read_kubeconfig(Path(settings.kubeconfig)), lambda: Backoff(0.1, 2.0, jitter=0.5))
    try:
        keys = json.loads(await api.request("GET", "/openid/v1/jwks"))
        issuer = json.loads(await api.request("GET", "/.well-known/openid-configuration"))["issuer"]
        swarm = Swarm(settings, api, keys["keys"][0]["kid"], issuer)
        watching = asyncio.create_task(swarm.pods.run())
        await swarm.pods.synced.wait()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await watching
    finally:
        await api.close()


def main(argv: Sequence[str]) -> int:
    collect_rarely()
    asyncio.run(run(msgspec.json.decode(Path(argv[0]).read_bytes(), type=SwarmSettings)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
