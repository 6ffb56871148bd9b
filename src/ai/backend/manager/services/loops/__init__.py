"""One file per background loop. Every loop is level-triggered and safe to run again at any time."""
