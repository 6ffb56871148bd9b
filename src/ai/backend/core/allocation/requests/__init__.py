"""What a session asks of the devices behind its slots, as a small typed expression."""
