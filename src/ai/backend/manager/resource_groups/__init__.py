"""Manages resource groups, and the domains, groups and keypairs that may use them."""
