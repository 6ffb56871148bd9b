"""Manages arrays: many batch sessions of one request, which are listed, ended and repeated as one."""
