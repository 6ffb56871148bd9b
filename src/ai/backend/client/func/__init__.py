"""The calls of the API as asyncio classes, one module an area. The blocking faces of them are in `client.session`."""
