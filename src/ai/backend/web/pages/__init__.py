"""Serves the files of a console, and the configuration that the console reads."""
