"""Services of sessions and tunnels to them."""
