"""The loss report as data: who lost what, since when, who is affected, and a map of the log. Reads only."""
