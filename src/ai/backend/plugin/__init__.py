"""The public, versioned interfaces for third parties: accelerator, runtime, volume, placement; ``testing`` holds their suites."""
