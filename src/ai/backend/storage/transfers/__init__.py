"""Serves uploads by tus, downloads, and the tokens that authorize both."""
