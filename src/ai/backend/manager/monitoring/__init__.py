"""What monitoring systems ask of a manager: what there is to watch, and how the installation is."""
