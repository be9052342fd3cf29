"""Run the tasks of an export in processes of this machine, or on Spark."""
