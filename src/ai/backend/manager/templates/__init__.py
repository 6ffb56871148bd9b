"""Session and cluster templates, and sessions created from them."""
