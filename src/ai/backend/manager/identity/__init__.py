"""Manages users, keypairs, domains, groups and policies, and signs users in."""
