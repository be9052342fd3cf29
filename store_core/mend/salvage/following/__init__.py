"""What follows the log: derived files, config files, progress files."""
