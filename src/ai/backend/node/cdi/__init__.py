"""Specifications of the Container Device Interface: written by agents, resolved and applied by runtimes."""
