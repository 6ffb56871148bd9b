"""The same from an asyncio program: every call is awaited."""

import asyncio

from ai.backend.client.session import AsyncSession


async def main() -> None:
    async with AsyncSession() as api_session:
        print(await api_session.System.get_versions())


if __name__ == "__main__":
    asyncio.run(main())
