"""The ``xfs`` backend: a volume on xfs, which enforces the limits of quota scopes."""
