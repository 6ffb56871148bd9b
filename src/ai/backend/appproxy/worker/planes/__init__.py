"""Contains the SPI of data planes, and the data planes that implement it."""
