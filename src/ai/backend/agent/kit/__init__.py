"""Builds the kit: our interpreter with libraries, in which the services of every session run (decision 0130)."""
