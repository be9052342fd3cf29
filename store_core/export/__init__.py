"""Export stores as Arrow rows, Parquet files and tables, by local processes or Spark."""
