"""Over ZeroMQ."""
