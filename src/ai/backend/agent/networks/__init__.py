"""Creates, secures and removes the private networks of cluster sessions."""
