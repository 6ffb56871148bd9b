"""Implements the web server: browsers sign in with a password, and their signed requests reach the managers (spec
03-02:183)."""
