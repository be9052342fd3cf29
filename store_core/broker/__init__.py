"""What a broker of a version does, as tables whose columns are versions."""
