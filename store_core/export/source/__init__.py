"""Spark reads a store as a table or a stream: options, splits that know where their first frame is, and the reading."""
