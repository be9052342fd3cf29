"""Who does the tasks of an export: processes of this machine, or Spark."""
