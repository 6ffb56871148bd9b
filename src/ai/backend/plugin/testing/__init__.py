"""Provides conformance suites and verified fakes for plugin authors. The suites need pytest and pytest-asyncio.

``class TestMine(ComputePluginContract)`` or ``class TestMine(RuntimeContract)`` with one fixture is a whole test file.
"""
