"""Where an export goes: its files, what describes them, and how they become visible at once."""
