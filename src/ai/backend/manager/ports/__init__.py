"""What this daemon needs from the world, as Protocols named by need."""
