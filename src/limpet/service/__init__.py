"""HTTP: the Iceberg REST catalog, the compactor's RPC, health and metrics. No other room knows HTTP.

`http` is the application with its guards, `rest` and `rpc` are its routes, `auth` reads tokens, `serve` is the process.
"""

__all__: list[str] = []
