"""What a v1 plugin imports, written anew from its published interface (spec 00, "Current Design"; peer facts 2.1, 2.2).

:mod:`ai.backend.pluginhost.v1.import_hook` shows each ``__all__`` under the names that v1 plugins know.
"""
