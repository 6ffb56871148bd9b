"""The calls of the API, one module an area, as asyncio classes with a blocking class beside each."""
