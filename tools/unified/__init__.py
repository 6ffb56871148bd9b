"""A virtual machine with Debian's kernel and the unified hierarchy of control groups (version 2), for tests."""
