"""Answers for a person: one record, a queue, a key, a group's progress, by the broker's own rules."""
