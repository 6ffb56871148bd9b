"""Adapts published plugins of version 1 of the interface (spec 00, "Current Design").

A v1 plugin runs in a host process like any other. There it finds the names that it imports (:mod:`.loader`), and
:class:`~ai.backend.pluginhost.v1.adapter.LegacyPluginAdapter` makes a plugin of the present interface of it. Its Docker
arguments become a WorkloadConfig, or deny the creation with their names (:mod:`.docker_args`). See decision 0068.
"""
