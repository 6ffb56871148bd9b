"""The modules that v1 plugins import, after the published interface (spec 00, "Current Design"; peer facts 2.1).

:mod:`ai.backend.pluginhost.v1.loader` shows each ``__all__`` under the names that v1 plugins know.
"""
