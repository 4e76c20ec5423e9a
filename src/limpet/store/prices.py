"""What requests cost, in dollars: list prices of one day, for orientation.

Requests only: storage, bytes that leave the cloud, free tiers and discounts are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from limpet.errors import Invalid

AS_OF = "2026-11"

DOLLARS_PER_1000: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        # S3 Standard, us-east-1
        "s3": {"get": 0.0004, "head": 0.0004, "put": 0.005, "list": 0.005, "delete": 0.0},
        # Cloud Storage Standard, one region: class A and class B operations
        "gcs": {"get": 0.0004, "head": 0.0004, "put": 0.005, "list": 0.005, "delete": 0.0},
        # Blob Storage Hot, LRS, East US
        "azure": {"get": 0.0004, "head": 0.0004, "put": 0.005, "list": 0.005, "delete": 0.0},
    }
)


def dollars(requests: Mapping[str, int], provider: str) -> float:
    """The price of `requests` (a count for each verb) at `provider`: s3, gcs or azure.   Raises: Invalid."""
    if provider not in DOLLARS_PER_1000:
        raise Invalid(f"no prices for {provider!r}", hint=f"use one of {', '.join(DOLLARS_PER_1000)}")
    prices = DOLLARS_PER_1000[provider]
    return sum(count * prices[verb] for verb, count in requests.items()) / 1000
