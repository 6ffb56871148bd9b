"""Users, keypairs, domains, groups and policies, and how users sign in."""
