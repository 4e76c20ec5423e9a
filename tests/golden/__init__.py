"""What earlier versions left on disk, and the proof that this one still reads it."""
