"""Let Spark read a store as a table or a stream."""
