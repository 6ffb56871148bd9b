"""Implements the data plane on HAProxy. The worker's embedded plane serves requests that HAProxy cannot decide."""
