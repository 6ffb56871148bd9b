"""The channel to a runner, with its runs, files and terminals."""
