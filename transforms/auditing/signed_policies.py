"""Signed reveal policies: before anything is opened, each party signs who shall learn what.

The signature is announced in the handshake, checked there with the pinned certificate, and kept beside the policy in
the run's folder: a party can show later that all had agreed. It is deterministic (RFC 6979), so a rerun announces the
same.
"""

import json
from collections.abc import Mapping

from veilmeans.crypto.certificates import is_signed_by, sign
from veilmeans.io.exchange.connections import load_identity, load_peer_certificates
from veilmeans.io.files.atomic_files import write_json
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import HandshakeError
from veilmeans.schemas.handshake_terms import POLICY, Terms

_LABEL = b"veilmeans reveal policy\n"
"""The beginning of all that is signed here: nothing else that is signed with the key begins with it."""


def policy_text(config: JobConfig, command: str, party: str) -> str:
    """Encode the content that `party` signs: the run, and who learns what."""
    policy = config.required_kmeans.reveal.model_dump(mode="json")
    if not policy["minimum_size"]:
        del policy["minimum_size"]  # signatures of runs without it stay as they were
    signed = {"party": party, "run": config.run, "command": command, "reveal": policy, "limit": config.openings.limit}
    return json.dumps(signed, sort_keys=True)


def signed_policy(config: JobConfig, command: str) -> dict[str, str]:
    """This party's signature of the policy, to be announced."""
    text = policy_text(config, command, config.party)
    return {POLICY: sign(load_identity(config), _LABEL + text.encode()).hex()}


def keep_policies(config: JobConfig, command: str, opening: str, heard: Mapping[str, Terms]) -> None:
    """Refuse a peer that has not signed the policy; keep what all have signed."""
    certificates = load_peer_certificates(config)
    for peer, terms in heard.items():
        text, signature = policy_text(config, command, peer), terms.announced.get(POLICY)
        try:
            signed = is_signed_by(certificates[peer], _LABEL + text.encode(), bytes.fromhex(str(signature)))
        except ValueError:
            signed = False
        if not signed:
            raise HandshakeError(f"{peer} has not signed the reveal policy with the key of its certificate")
        content = {"policy": text, "signature": signature, "certificate": certificates[peer].decode()}
        write_json(config.run_folder.policy(opening, peer), content)
