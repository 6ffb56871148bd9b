"""What the agent needs of its surroundings."""
