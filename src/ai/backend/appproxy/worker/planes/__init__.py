"""Data planes: the SPI, and the planes that implement it."""
