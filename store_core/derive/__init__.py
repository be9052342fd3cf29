"""What follows from the log: queue files, index files, checkpoint, topics; one builder for each, whoever asks."""
