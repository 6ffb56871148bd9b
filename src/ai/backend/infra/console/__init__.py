"""Builds and finds the bundle of the web console.

Imports the standard library alone: the hook that builds wheels runs this code where nothing is installed.
"""
