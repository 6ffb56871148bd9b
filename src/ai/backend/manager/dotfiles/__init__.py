"""Dotfiles and bootstrap scripts."""
