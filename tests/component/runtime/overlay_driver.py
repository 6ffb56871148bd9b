"""A node in miniature, in a network namespace of its own: one kernel of a session that has others elsewhere.

Usage: python overlay_driver.py NAMESPACE process|docker STATE SESSION_ID SETTINGS_JSON IMAGE HOST OVERLAY_JSON

It says `ready`, then runs what it reads, a program in JSON a line, and says in JSON what that printed. At the end of
its input it removes everything, and says `gone`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from uuid import UUID, uuid4

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.runtime import Overlay, WorkloadKey, WorkloadSpec
from ai.backend.plugin.testing.runtime.suite import Talk
from tests.component.runtime.network_driver import make
from tests.support.namespaces import enter


async def main() -> None:
    namespace, kind, state, session_id, settings, image, host, told = sys.argv[1:9]
    enter(namespace)
    session, given = SessionId(UUID(session_id)), json.loads(told)
    given |= {"local": tuple(given["local"]), "peers": {at: tuple(place) for at, place in given["peers"].items()}}
    overlay = Overlay(**given)
    runtime = make(kind, Path(state), json.loads(settings))
    await runtime.setup()
    try:
        network = await runtime.create_network(session, list(overlay.addresses), overlay)
        assert await runtime.create_network(session, list(overlay.addresses), overlay) == network, "idempotent"
        assert list(await runtime.list_networks()) == [session]
        key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
        await runtime.create(WorkloadSpec(key=key, session_id=session, image=image, hostname=host, network=network))
        talk = Talk(await runtime.open_channel(key, epoch=1), 30.0)
        await talk.kind("ready")
        print("ready", flush=True)
        number = 0
        while line := await asyncio.to_thread(sys.stdin.readline):
            number += 1
            await talk.run(json.loads(line), f"r{number}")
            print(json.dumps(talk.text(f"r{number}") + talk.text(f"r{number}", "stderr")), flush=True)
        await talk.close()
        await runtime.remove(key)
        await runtime.remove_network(session)
        assert list(await runtime.list_networks()) == []
    finally:
        await runtime.shutdown()
    print("gone", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
