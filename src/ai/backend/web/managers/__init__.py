"""Requests to the managers behind the web server."""
