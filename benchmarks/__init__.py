"""What is promised about speed and memory, measured against the real broker's store code, the disk and the checksum alone."""
