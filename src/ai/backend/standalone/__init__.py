"""`backend.ai up`: the whole platform in one process, or one process per daemon, on one data directory."""
