"""Sends requests to the managers behind the web server."""
