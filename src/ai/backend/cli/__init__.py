"""The `backend.ai` command.

Nothing heavy is imported before it is needed: the root knows its commands as a table of import paths, so `--help` and
completion stay quick.
"""
