"""The embedded data plane: asyncio, in the process of the worker."""
