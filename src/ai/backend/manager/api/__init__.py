"""The manager's REST, event and GraphQL interface: shapes in and out, no rules of its own."""
