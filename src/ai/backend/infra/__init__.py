"""Provides the infrastructure that daemons share: settings, database, bus, config store, HTTP, RPC, telemetry."""
