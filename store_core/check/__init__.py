"""Compare the log with the files derived from it, and report findings."""
