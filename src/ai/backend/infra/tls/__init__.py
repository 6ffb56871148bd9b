"""Makes certificates and TLS contexts for connections between the platform's own daemons."""
