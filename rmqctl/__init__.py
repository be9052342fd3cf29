"""The command line: parse, one library call, show, exit code."""

__version__ = "0.1.0"
