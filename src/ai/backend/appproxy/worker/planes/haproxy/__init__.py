"""The data plane on HAProxy: it moves the bytes; the embedded plane behind it answers whatever it may not decide."""
