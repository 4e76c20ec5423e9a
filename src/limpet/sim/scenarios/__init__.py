"""The worlds that `python -m limpet.sim` can run, by name."""
