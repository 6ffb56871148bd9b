"""Images and container registries."""
