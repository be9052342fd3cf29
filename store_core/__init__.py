"""Apache RocketMQ broker stores as a library: read, check, mend, write, export.

The rooms, from the bottom up (imports go one way, see docs/architecture.md):
layout, codec, storage, kernel, scan, derive, read, check, broker, mend, engine, export.
"""
