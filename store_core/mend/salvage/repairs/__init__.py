"""What stands in the log, but wrongly, and can be put right: heads, places, numbers, lists."""
