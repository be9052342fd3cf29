"""Holes closed without moving an offset, and the log as it will be then."""
