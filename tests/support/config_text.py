"""A configuration as a mapping, with gateways."""

from typing import Any

Raw = dict[str, Any]
JOB: Raw = {"data": "data.csv", "columns": ["a"], "product": ["payco.a", "shop.b"], "bound": 10}


def gateway() -> Raw:
    """What a party would write, with relative paths."""
    return {
        "party": "payco",
        "run": "run-1",
        "parties": ["payco", "shop"],
        "dealer": "notary",
        "certificate": "payco.crt",
        "key": "payco.key",
        "seed": "payco.seed",
        "storage": "storage",
        "listen": "127.0.0.1:4000",
        "peers": {
            "shop": {"certificate": "shop.crt", "address": "127.0.0.1:4001"},
            "notary": {"certificate": "notary.crt", "address": "127.0.0.1:4002"},
        },
        "triples": {"store": "october", "rows": 5},
        "sums": dict(JOB),
    }
