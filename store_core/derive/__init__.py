"""Build what follows from the log: queue files, index files, checkpoint, topics; all callers share one builder of each."""
