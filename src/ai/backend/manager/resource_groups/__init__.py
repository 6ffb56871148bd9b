"""Resource groups, and the domains, groups and keypairs they are open to."""
