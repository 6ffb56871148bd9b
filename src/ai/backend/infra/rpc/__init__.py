"""Connects manager and agents by one interface (``endpoints``), in memory or by ZeroMQ with CURVE."""
