"""The ``vfs`` backend: a volume in any directory of any file system."""
