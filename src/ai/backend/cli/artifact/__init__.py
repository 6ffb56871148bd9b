"""Commands on artifacts and their registries."""
