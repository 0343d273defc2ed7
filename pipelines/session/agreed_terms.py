"""The terms of a K-means run: what all parties must agree on before any data flow."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from veilmeans.crypto.pairwise_encryption import PairwiseCipher
from veilmeans.io.exchange.connections import load_identity, load_peer_certificates
from veilmeans.io.sources.column_encoding import HOT
from veilmeans.io.sources.scan import Scan
from veilmeans.pipelines.session.aligned_config import load_alignment
from veilmeans.pipelines.session.trained_model import TrainedModel
from veilmeans.schemas.column_names import numbered_names, ranges_of
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.config_fields import Command, agreed_fields
from veilmeans.schemas.errors import HandshakeError
from veilmeans.schemas.handshake_terms import IDS, PROTOCOL_VERSION, Terms
from veilmeans.transforms.auditing.signed_policies import signed_policy
from veilmeans.transforms.products.engine_parameters import ChosenEngines


def train_terms(
    config: JobConfig, scan: Scan, engines: ChosenEngines, binding: str, model: TrainedModel | None = None
) -> dict[str, Terms]:
    """The terms for each peer: the job, and a digest of the rows' ids that only the two of us can compare."""
    job = config.required_kmeans
    chosen = [f"{party} {'/'.join(each)}" for party, each in zip(config.parties, engines, strict=True)]
    agreed = {**agreed_terms(config, job.command), "engines of the store": chosen}
    agreed["kmeans.id"] = "set" if job.id else "not set"
    if model is not None:  # all parties must have the model of the same training, with as many iterations
        agreed |= {"iterations of the model": model.iterations, "training of the model": model.training_digest}
    if job.layout == "horizontal":
        agreed["kmeans.columns"] = _columns(scan)
        if job.aggregates:
            agreed["kmeans.kinds of columns"] = _kinds(scan)
        agreed["kmeans.id"] = "each its own"
    compared = job.layout == "vertical" and job.id is not None
    announced = {peer: {IDS: digest} for peer, digest in _id_digests(config, scan).items()} if compared else {}
    signed = signed_policy(config, job.command)
    return {peer: Terms(agreed, {**announced.get(peer, {}), **signed}, binding) for peer in config.peers}


def _columns(scan: Scan) -> list[Any]:
    """The columns' names; "0", "1", … are alike whether a file has such names or none."""
    numbered = all(name == str(number) for number, name in enumerate(scan.columns))
    return ranges_of(numbered_names(len(scan.columns)) if numbered else scan.columns)


def _kinds(scan: Scan) -> list[list[Any]]:
    """The kinds of columns, each with how many follow each other: all parties must scale a column in the same way."""
    found = groupby(scan.fields, key=lambda field: "0 or 1" if field.kind in HOT else field.kind)
    return [[kind, sum(field.width for field in group)] for kind, group in found]


def _id_digests(config: JobConfig, scan: Scan) -> dict[str, str]:
    """A digest of the ids in their order for each peer, keyed so that only the two of us can compare it.

    Aligned rows may have ids that are spelled differently: then it is the digest of the alignment's order.
    """
    identity, aligned = load_identity(config), load_alignment(config)
    ids = scan.ids if aligned is None else f"aligned {aligned.order}"
    return {
        peer: PairwiseCipher(identity, certificate).digest(f"ids {config.run} {ids}".encode()).hex()
        for peer, certificate in load_peer_certificates(config).items()
    }


def check_ids(party: str, sent: Mapping[str, Terms], received: Mapping[str, Terms]) -> None:
    """Refuse rows that are not the same, in the same order."""
    for peer, terms in received.items():
        if terms.announced.get(IDS) != sent[peer].announced.get(IDS):
            raise HandshakeError(
                f"the rows' ids of {party} and {peer}, or their order, differ: set align to true at both and remove "
                "kmeans.rows, or sort both files; then rerun"
            )


def agreed_terms(config: JobConfig, command: Command) -> dict[str, Any]:
    """The fields that every member of a handshake must have alike, by the names they have in a configuration."""
    vertical = config.kmeans is None or config.kmeans.vertical
    fields = agreed_fields(config, command, vertical)
    if "triples.provider" in fields:  # left out and spelled out are alike
        fields["triples.provider"] = config.provider
    return {"protocol version": PROTOCOL_VERSION, **fields}
