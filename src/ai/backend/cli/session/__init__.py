"""Session and its shortcuts."""
