"""Implements the data plane on HAProxy. Requests that HAProxy may not decide go to the embedded plane behind it."""
