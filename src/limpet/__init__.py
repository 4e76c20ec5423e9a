"""Run a whole fleet from one bucket."""
