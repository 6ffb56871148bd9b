"""Creates sessions with their kernels, moves them through their life cycle, stores them and serves their API."""
