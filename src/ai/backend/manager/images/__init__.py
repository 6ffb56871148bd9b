"""Container images and the registries that they come from."""
