"""Reports errors and figures of daemons to external services."""
