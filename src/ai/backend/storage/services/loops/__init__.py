"""What repeats."""
