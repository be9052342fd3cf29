"""What the bytes say: properties, tags, message ids, hosts, compression, and the broker's JSON dialect."""
