"""Builds the files of a release: ``python -m tools.release FOLDER``."""
