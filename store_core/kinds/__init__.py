"""List every finding code with its meaning and advice, a module for each letter. Codes are an interface: add some, never change one."""
