"""Serves HTTP for the daemons on aiohttp: typed routes, signatures, limits, problems, streams, an OpenAPI document."""
