"""Convert between bytes and values: properties, tags, message ids, hosts, compression, and the broker's JSON dialect."""
