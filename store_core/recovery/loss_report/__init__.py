"""Build the loss report as data: lost messages, their times, affected groups, and a map of the log. Reads only."""
