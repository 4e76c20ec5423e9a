"""`python -m limpet` is the `limpet` command."""

from limpet.cli import main

main()
