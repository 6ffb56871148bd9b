"""Manages the data directory of the agent, its record database, and the base class of records."""
