"""Stores the answers to calls with a client token, so that a repeated call gets the same answer."""
