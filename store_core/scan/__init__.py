"""The log as frames and columns, resynchronised behind damage; one process or many."""
