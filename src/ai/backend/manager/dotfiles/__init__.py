"""Manages the dotfiles and bootstrap scripts that new sessions get."""
