"""Dotfiles and bootstrap scripts that new sessions get."""
