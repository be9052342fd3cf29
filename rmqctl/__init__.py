"""Run the command line: parse, make one library call, show the result, return an exit code."""

__version__ = "0.1.0"
