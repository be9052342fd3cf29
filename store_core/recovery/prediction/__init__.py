"""What a broker's start would do to a store, and what it would lose."""
