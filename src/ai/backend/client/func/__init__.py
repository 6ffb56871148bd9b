"""Contains the calls of the API, one module for each area, as asyncio classes with blocking classes beside them."""
