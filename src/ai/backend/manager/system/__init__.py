"""Status, announcement, shared configuration."""
