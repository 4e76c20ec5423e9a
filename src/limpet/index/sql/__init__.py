"""SQL over the indexes of a fleet, by DuckDB. The extra `sql` is imported when the first query runs."""

from limpet.index.sql.query import Parameters, sql
from limpet.index.sql.rows import Rows

__all__ = ["Parameters", "Rows", "sql"]
