"""Answer an operator's questions about records, queues, keys and progress by the broker's own rules."""
