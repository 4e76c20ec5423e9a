"""Tests of `limpet.kernel.lease`."""
