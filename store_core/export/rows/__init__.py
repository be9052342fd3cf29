"""Messages as columns: the schema, and how a window becomes Arrow record batches."""
