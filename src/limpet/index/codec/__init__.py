"""Records as lines of text: `lines` writes and reads them, `types` makes columns of what a program declares."""
