"""The wiring: class Manager, HTTP application, stores, what it stands on."""
