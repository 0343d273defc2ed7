"""A small K-means job as a mapping, for tests that need a configuration but run no K-means."""

from typing import Any

FEATURES = {"payco": 2, "shop": 1, "bank": 2}


def job_of(parties: int, **fields: Any) -> dict[str, Any]:
    """The fields of `kmeans`: five rows, two clusters, one iteration. `fields` replace some of them."""
    names = list(FEATURES)[:parties]
    return {
        "layout": "vertical",
        "rows": 5,
        "features": {name: FEATURES[name] for name in names},
        "clusters": 2,
        "max_iter": 1,
        "tol": 0,
        "init": {"method": "indices", "indices": [1, 4]},
        "products": "beaver",
        "reveal": {"assignments": names},
        **fields,
    }
