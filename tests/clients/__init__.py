"""Real clients of the catalog: PyIceberg, DuckDB and Polars, each with its tables on a directory and on SeaweedFS."""
