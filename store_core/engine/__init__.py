"""The live store: what a broker does to its files when it stores a message, done without a broker."""
