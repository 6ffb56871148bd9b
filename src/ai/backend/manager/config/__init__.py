"""Static settings of the manager, read from ``manager.toml`` and ``BACKEND_MANAGER_*``."""
