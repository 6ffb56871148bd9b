"""Certificates and contexts of TLS between our own daemons."""
