"""Users, keypairs, domains, projects, policies, sign-in."""
