"""Whether a session is used by anybody: rules, a window of measurements, and a verdict. Pure."""
