"""Commands on session templates and dotfiles."""
