"""Walk over the log as frames in columns, resynchronised after damage, in one thread or several."""
