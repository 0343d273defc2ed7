"""What the parties of a K-means run must agree on before any data flow."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from veilmeans.crypto.pairwise_encryption import Seal
from veilmeans.io.exchange.connections import load_identity, load_peer_certificates
from veilmeans.io.sources.column_encoding import HOT
from veilmeans.io.sources.scan import Scan
from veilmeans.pipelines.session.kmeans_from_config import not_agreed
from veilmeans.pipelines.session.trained_model import TrainedModel
from veilmeans.schemas.column_names import numbered, ranges_of
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import HandshakeError
from veilmeans.schemas.handshake_terms import PROTOCOL_VERSION, Terms
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.transforms.products.engine_parameters import ChosenEngines


def train_terms(
    config: JobConfig,
    job: KMeansConfig,
    scan: Scan,
    engines: ChosenEngines,
    binding: str,
    model: TrainedModel | None = None,
) -> dict[str, Terms]:
    """What each peer is told: the job, and a digest of the rows' ids that only the two of us can compare."""
    fields = job.model_dump(mode="json", exclude=not_agreed(job))
    settled = [f"{party} {'/'.join(each)}" for party, each in zip(config.parties, engines, strict=True)]
    agreed = {
        **agreed_terms(config),
        "triples.store": config.required_triples.store,
        "kmeans.id": "set" if job.id else "not set",
        "engines of the store": settled,
        **_flat("kmeans", fields),
        **_of_model(model),
    }
    if job.layout == "horizontal":
        agreed["kmeans.columns"] = _columns(scan)
        if model is None:
            agreed["kmeans.categories"] = {name: list(values) for name, values in job.categories.items()}
        if job.aggregates:
            agreed["kmeans.kinds of columns"] = _kinds(scan)
        agreed["kmeans.id"] = "each its own"
    else:
        agreed.pop("kmeans.normalise.ranges", None)
    compared = job.layout == "vertical" and job.id is not None
    announced = {peer: {"ids": digest} for peer, digest in _id_digests(config, scan).items()} if compared else {}
    return {peer: Terms(agreed, announced.get(peer, {}), binding) for peer in config.peers}


def _of_model(model: TrainedModel | None) -> dict[str, Any]:
    """Both have the model of one training, and all of it."""
    if model is None:
        return {}
    return {"iterations of the model": model.iterations, "training of the model": model.together}


def _columns(scan: Scan) -> list[Any]:
    """The columns' names; "0", "1", … are alike whether a file has such names or none."""
    count = len(scan.columns)
    alike = all(name == str(number) for number, name in enumerate(scan.columns))
    return ranges_of(numbered(count) if alike else scan.columns)


def _kinds(scan: Scan) -> list[list[Any]]:
    """Which columns are scaled in which way, for as many in a row: all must scale a column alike."""
    found = groupby(scan.fields, key=lambda field: "0 or 1" if field.kind in HOT else field.kind)
    return [[kind, sum(field.width for field in group)] for kind, group in found]


def _flat(prefix: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Nested fields under dotted names."""
    result: dict[str, Any] = {}
    for name, value in fields.items():
        nested = isinstance(value, dict) and name in ("init", "normalise", "reveal", "cipher", "predict")
        result |= _flat(f"{prefix}.{name}", value) if nested else {f"{prefix}.{name}": value}
    return result


def _id_digests(config: JobConfig, scan: Scan) -> dict[str, str]:
    """A digest of the ids in their order, keyed for each peer: nobody else can tell whether ids are equal."""
    identity = load_identity(config)
    return {
        peer: Seal(identity, certificate).digest(f"ids {config.run} {scan.ids}".encode()).hex()
        for peer, certificate in load_peer_certificates(config).items()
    }


def check_ids(party: str, said: Mapping[str, Terms], heard: Mapping[str, Terms]) -> None:
    """Refuse rows that are not the same, in the same order."""
    for peer, terms in heard.items():
        if terms.announced.get("ids") != said[peer].announced.get("ids"):
            raise HandshakeError(
                f"the ids of the rows of {party} and {peer}, or their order, differ: "
                "sort both by the same ids, then start both again"
            )


def agreed_terms(config: JobConfig) -> Mapping[str, Any]:
    """What every member of a run, the dealer included, must have alike."""
    return {
        "protocol version": PROTOCOL_VERSION,
        "parties": list(config.parties),
        "dealer": config.dealer,
        "engine.rows_per_shard": config.engine.rows_per_shard,
    }
