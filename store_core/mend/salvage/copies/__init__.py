"""What another copy of the log has: whether it is one, what it gives back, where it begins."""
