"""Tests of `limpet.lease`."""
