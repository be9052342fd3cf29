"""Convert windows of messages to Arrow record batches of the documented schema."""
