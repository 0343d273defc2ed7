"""Echoes: of three and more parties, each repeats a digest of what the others have broadcast, and compares.

In most rounds a party says the same to all others. If it does not, the others compute with different values. Two
parties have nothing to compare. An echo of an iteration is sent when its checkpoint is written, and the last one before
anything is opened.
"""

import json
from collections.abc import Mapping

import numpy as np

from veilmeans.io.exchange.exchange import Exchange, Outgoing, deliver_now, get_arrays
from veilmeans.io.files.atomic_files import read_json, write_json
from veilmeans.io.messages.transcript import Transcript
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.message import MessageKey

_STAGE = "echo"
Echoes = Mapping[str, Mapping[str, str]]
"""Party -> stage -> a digest of what the party has broadcast in it."""


def compare_echoes(exchange: Exchange, config: JobConfig, before: int) -> None:
    """Echo all iterations below `before` that were not echoed yet; a difference ends the run."""
    if len(config.parties) < 3:
        return
    transcript = Transcript(config.run_folder.transcript(), config.run)
    mark = transcript.folder / "echoed.json"
    done = read_json(mark)
    for iteration in transcript.iterations():
        if iteration < before and (done is None or iteration > done):
            _compare(exchange, config, transcript, iteration)
            write_json(mark, iteration)


def _compare(exchange: Exchange, config: JobConfig, transcript: Transcript, iteration: int) -> None:
    heard = transcript.echoes(iteration, config.parties)
    where, content = Address(config.run, iteration, _STAGE, 0), json.dumps(heard, sort_keys=True).encode()
    mine = {"echo": np.frombuffer(content, np.uint8)}
    deliver_now(exchange, [Outgoing.of(MessageKey(where, config.party, peer), mine) for peer in config.peers])
    for peer in config.peers:
        arrays = get_arrays(exchange, MessageKey(where, peer, config.party), config.exchange.timeout_s)
        find_equivocation(config.party, peer, iteration, heard, _parse(peer, arrays.get("echo", np.zeros(0, np.uint8))))


def _parse(peer: str, content: np.ndarray) -> Echoes:
    try:
        said = json.loads(content.tobytes())
        return {str(party): {str(s): str(d) for s, d in stages.items()} for party, stages in said.items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise RefusedError(f"{peer} did not say what it has heard: does it run another veilmeans?") from None


def find_equivocation(me: str, peer: str, iteration: int, mine: Echoes, theirs: Echoes) -> None:
    """Raise a RefusedError if a peer has heard something else than this party, from the sender or from us."""
    for sender in sorted(mine):
        here, there = mine[sender], theirs.get(sender, {})
        if here == there:
            continue
        stage = min(name for name in {*here, *there} if here.get(name) != there.get(name))
        if me == sender or peer == sender:
            what = f"{peer} does not repeat what it {'said to' if peer == sender else 'heard from'} {me}"
        else:
            what = f"{sender} said one thing to {me} and another to {peer}, or {peer} does not repeat what it heard"
        raise RefusedError(f"{what} (iteration {iteration}, {stage}): nothing was opened; do not run with them again")
