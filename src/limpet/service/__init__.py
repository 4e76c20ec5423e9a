"""HTTP: the Iceberg REST catalog, the compactor's RPC, health and metrics. No other room knows HTTP.

`http` is the application, `rest` and `rpc` are its routes, `limits` and `auth` its guards, `serve` the process.
"""

__all__: list[str] = []
