"""The link between manager and agents: one interface (``endpoints``), carried in memory or by ZeroMQ with CURVE."""
