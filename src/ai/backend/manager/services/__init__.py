"""Use cases of the manager: short async functions over ports; background work lives in ``loops``."""
