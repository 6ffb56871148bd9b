"""Settings of the web server."""
