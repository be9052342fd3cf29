"""Store messages in a store's files as a broker does, without a broker."""
