"""Workers: processes that serve apps to browsers and programs."""
