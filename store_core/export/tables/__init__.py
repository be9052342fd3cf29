"""Read a store's tables as Arrow record batches: only the requested columns and rows."""
