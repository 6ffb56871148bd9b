"""Files of a console, and the configuration that it reads."""
