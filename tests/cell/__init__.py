"""Tests of `limpet.cell`."""
