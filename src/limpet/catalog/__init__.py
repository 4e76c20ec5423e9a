"""The catalog: a fenced ledger, published by a sole writer."""
