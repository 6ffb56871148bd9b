"""Commands on virtual folders, storage hosts and quotas."""
