"""Secure K-means over data that several companies hold and may not show each other.

    config = load_config(Path("payco/config.yaml"))   # checked once; a mistake is a VeilmeansError with the field
    plan = plan_ahead(config)                         # steps, rounds, bytes and disk, from the configuration alone
    run_offline(config)                               # every party and the dealer: make the triple store
    folder = run_train(config)                        # every party: take part; the folder with the results

`VeilKMeans` runs all parties on this machine, as a scikit-learn estimator. `veilmeans.protocols` has the names for
one's own protocols. All names are imported when they are first used, so that `import veilmeans` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veilmeans.pipelines.gateway import run_gateway as run_gateway
    from veilmeans.pipelines.local.estimator import VeilKMeans as VeilKMeans
    from veilmeans.pipelines.offline import run_offline as run_offline
    from veilmeans.pipelines.planning.job_plan import plan_ahead as plan_ahead
    from veilmeans.pipelines.planning.plan_schema import JobPlan as JobPlan
    from veilmeans.pipelines.predict import run_predict as run_predict
    from veilmeans.pipelines.prepare import prepare_data as prepare_data
    from veilmeans.pipelines.reveal import run_reveal as run_reveal
    from veilmeans.pipelines.sweep import run_sweep as run_sweep
    from veilmeans.pipelines.train import run_train as run_train
    from veilmeans.schemas.config import JobConfig as JobConfig
    from veilmeans.schemas.config import load_config as load_config
    from veilmeans.schemas.errors import VeilmeansError as VeilmeansError
    from veilmeans.schemas.kmeans_config import KMeansConfig as KMeansConfig

__version__ = "0.1.0"
_MODULES = {
    "JobConfig": "schemas.config",
    "JobPlan": "pipelines.planning.plan_schema",
    "KMeansConfig": "schemas.kmeans_config",
    "VeilKMeans": "pipelines.local.estimator",
    "VeilmeansError": "schemas.errors",
    "load_config": "schemas.config",
    "plan_ahead": "pipelines.planning.job_plan",
    "prepare_data": "pipelines.prepare",
    "run_gateway": "pipelines.gateway",
    "run_offline": "pipelines.offline",
    "run_predict": "pipelines.predict",
    "run_reveal": "pipelines.reveal",
    "run_sweep": "pipelines.sweep",
    "run_train": "pipelines.train",
}
"""The public names, and the modules that define them."""
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"veilmeans.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
