"""Public, versioned interfaces for third parties: accelerator, runtime; ``testing`` holds their conformance suites."""
