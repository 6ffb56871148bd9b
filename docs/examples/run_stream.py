"""Stream a run: output comes as it is made, and no run id is needed."""

import asyncio

from console import show

from ai.backend.client.session import AsyncSession

CODE = "import time\nfor n in range(3):\n    print('tick', n)\n    time.sleep(0.5)"


async def main() -> None:
    async with AsyncSession() as api_session:
        compute_session = await api_session.ComputeSession.get_or_create("python", resources={"cpu": 1, "mem": "256m"})
        try:
            async with compute_session.stream_execute(CODE) as stream:
                async for result in stream.results():
                    show(result.get("console") or [])
                    if result["status"] == "waiting-input":
                        await stream.send_text(await asyncio.to_thread(input))
        finally:
            await compute_session.destroy()


if __name__ == "__main__":
    asyncio.run(main())
