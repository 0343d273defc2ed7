"""K-means over data that several companies hold and none may show."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veilmeans.pipelines.local.estimator import VeilKMeans as VeilKMeans

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`VeilKMeans` comes when it is asked for: it needs scikit-learn, which nothing else does."""
    if name == "VeilKMeans":
        from veilmeans.pipelines.local.estimator import VeilKMeans

        return VeilKMeans
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
