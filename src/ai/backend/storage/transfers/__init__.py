"""Uploads by tus, downloads, and the tokens that authorize them."""
