"""Tests of `limpet.kernel.cell`."""
