"""Reads, writes and applies specifications of the Container Device Interface (CDI), which agents write for runtimes."""
