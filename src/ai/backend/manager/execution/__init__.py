"""Code, files, terminals, commits of running sessions."""
