"""Pieces of a log side by side: planning them, doing one, proving that they join."""
