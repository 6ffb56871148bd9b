"""The data plane on Traefik."""
