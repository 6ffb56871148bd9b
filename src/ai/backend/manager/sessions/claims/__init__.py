"""Device claims: devices that stay allocated to their owner between sessions."""
