"""Plans as data: steps, the bytes they bring, what they expect to find."""
