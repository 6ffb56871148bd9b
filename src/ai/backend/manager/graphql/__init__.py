"""Serves GraphQL from a schema, with resolvers that call the services. Imported by the first query, not at start."""
