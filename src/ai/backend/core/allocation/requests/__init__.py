"""Device requests: typed expressions over the devices behind the slots of a session."""
