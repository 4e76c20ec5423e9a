"""HTTP: the Iceberg REST catalog, the compactor's RPC, health and metrics. Beside the dashboard, no room knows HTTP.

To be read in this order, the way of a request: `protocol` and `tls` limit connections, `tokens` says who may do what,
`app` admits a request, reads its body and runs its handler, `requests` holds requests, responses and errors. `rest`
and `rpc` are the routes, `sign` and `decide` give access to files. `parts`, `status`, `log` and `serve` are the
process; `client` sends requests to a running one.

It may import the catalog, events, the app and the kernel, and neither the dashboard nor the command line.
"""

__all__: list[str] = []
