"""HTTP: the Iceberg REST catalog, the compactor's RPC, health and metrics. The only room that knows HTTP.

Handlers are plain functions from `Request` to `Response`; `asgi` is the shell around them, `server` runs it.
"""

__all__: list[str] = []
