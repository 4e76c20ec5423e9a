"""Iceberg's metadata: the only package that knows PyIceberg."""

__all__: list[str] = []
