"""The GraphQL endpoint: schema first, resolvers over the services. Imported by the first query, not at start."""
