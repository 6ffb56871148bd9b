"""Make a request that the SDK has no method for; it is signed like all others."""

import asyncio

from ai.backend.client.request import Request
from ai.backend.client.session import AsyncSession


async def main() -> None:
    async with AsyncSession(), Request("GET", "/config/resource-slots").fetch() as response:
        print(sorted(await response.json()))


if __name__ == "__main__":
    asyncio.run(main())
