"""The worker of the app proxy: serves circuits to browsers and clients."""
