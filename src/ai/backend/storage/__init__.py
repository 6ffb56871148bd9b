"""The storage proxy: folders on volumes, and the transfers to and from them."""
