"""The operations of Iceberg's REST specification, copied from its YAML."""

from __future__ import annotations

from dataclasses import dataclass

TABLE = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
VIEW = "/v1/{prefix}/namespaces/{namespace}/views/{view}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its statuses in the specification, without those of all operations, and fields of a success."""

    name: str
    method: str
    path: str
    statuses: frozenset[int]
    required: tuple[str, ...]

    @property
    def endpoint(self) -> str:
        return f"{self.method} {self.path}"


OPERATIONS = [
    Operation(name, method, path, frozenset(map(int, statuses.split())), tuple(required.split()))
    for name, method, path, statuses, required in (
        ("getConfig", "GET", "/v1/config", "200", "defaults overrides"),
        ("getToken", "POST", "/v1/oauth/tokens", "200", "access_token token_type"),
        ("listNamespaces", "GET", "/v1/{prefix}/namespaces", "200 404", "namespaces"),
        ("createNamespace", "POST", "/v1/{prefix}/namespaces", "200 406 409", "namespace"),
        ("loadNamespaceMetadata", "GET", "/v1/{prefix}/namespaces/{namespace}", "200 404", "namespace"),
        ("namespaceExists", "HEAD", "/v1/{prefix}/namespaces/{namespace}", "204 404", ""),
        ("dropNamespace", "DELETE", "/v1/{prefix}/namespaces/{namespace}", "204 404 409", ""),
        ("updateProperties", "POST", "/v1/{prefix}/namespaces/{namespace}/properties", "200 404 406 422",
         "updated removed"),
        ("listTables", "GET", "/v1/{prefix}/namespaces/{namespace}/tables", "200 404", "identifiers"),
        ("createTable", "POST", "/v1/{prefix}/namespaces/{namespace}/tables", "200 404 409", "metadata"),
        ("planTableScan", "POST", f"{TABLE}/plan", "200 404 406", "status plan-id"),
        ("fetchPlanningResult", "GET", f"{TABLE}/plan/{{plan-id}}", "200 404", "status"),
        ("cancelPlanning", "DELETE", f"{TABLE}/plan/{{plan-id}}", "204 404", ""),
        ("fetchScanTasks", "POST", f"{TABLE}/tasks", "200 404", ""),
        ("registerTable", "POST", "/v1/{prefix}/namespaces/{namespace}/register", "200 404 409", "metadata"),
        ("unregisterTable", "POST", f"{TABLE}/unregister", "200 404", "metadata-location metadata"),
        ("loadTable", "GET", TABLE, "200 304 404", "metadata"),
        ("updateTable", "POST", TABLE, "200 404 409 500 502 504", "metadata-location metadata"),
        ("dropTable", "DELETE", TABLE, "204 404", ""),
        ("tableExists", "HEAD", TABLE, "204 404", ""),
        ("loadCredentials", "GET", f"{TABLE}/credentials", "200 404", "storage-credentials"),
        ("signRequest", "POST", f"{TABLE}/sign", "200 404", "uri headers"),
        ("renameTable", "POST", "/v1/{prefix}/tables/rename", "204 404 406 409", ""),
        ("reportMetrics", "POST", f"{TABLE}/metrics", "204 404", ""),
        ("commitTransaction", "POST", "/v1/{prefix}/transactions/commit", "204 404 409 500 502 504", ""),
        ("listViews", "GET", "/v1/{prefix}/namespaces/{namespace}/views", "200 404", "identifiers"),
        ("createView", "POST", "/v1/{prefix}/namespaces/{namespace}/views", "200 404 409",
         "metadata-location metadata"),
        ("loadView", "GET", VIEW, "200 404", "metadata-location metadata"),
        ("replaceView", "POST", VIEW, "200 404 409 500 502 504", "metadata-location metadata"),
        ("dropView", "DELETE", VIEW, "204 404", ""),
        ("viewExists", "HEAD", VIEW, "204 404", ""),
        ("renameView", "POST", "/v1/{prefix}/views/rename", "204 404 406 409", ""),
        ("registerView", "POST", "/v1/{prefix}/namespaces/{namespace}/register-view", "200 404 409",
         "metadata-location metadata"),
        ("listFunctions", "GET", "/v1/{prefix}/namespaces/{namespace}/functions", "200 404", ""),
        ("loadFunction", "GET", "/v1/{prefix}/namespaces/{namespace}/functions/{function}", "200 404", "metadata"),
    )
]  # fmt: skip
"""The 35 operations of `open-api/rest-catalog-open-api.yaml` of Iceberg's main branch in July 2026: the 32 of version
1.11, unregister, and two of functions. `identifiers` and `namespaces` are optional there; every client needs them."""
ALWAYS = frozenset((400, 401, 403, 419, 503))
"""Statuses that every operation may have."""
