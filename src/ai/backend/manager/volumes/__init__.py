"""Describes storage hosts (volumes of the storage proxies) and the permissions on them."""
