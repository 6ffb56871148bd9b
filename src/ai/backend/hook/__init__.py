"""Hook plugins of the platform: sign-on by directories and identity providers (spec 03-01)."""
