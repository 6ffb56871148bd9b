"""The manager daemon: owns the state of sessions and kernels, serves the API, commands the agents."""
