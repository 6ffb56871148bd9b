"""Implements the web server: browsers sign in with a password, and it sends their signed requests to the managers.

See spec 03-02:183.
"""
