"""Tests of `limpet.app`."""
