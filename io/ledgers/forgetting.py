"""Deletion of what no later command needs when a run has ended at all parties, unless `audit.keep` asks for it.

  forgotten   of the triple store: the run's seeds, corrections and ciphertexts
              of the run: the peers' masked matrices, encrypted centroids, all shares of earlier iterations
  kept        for `predict` and `reveal`: shares of the final centroids, of the rows' clusters and scores, of profiles
              and explanations, with the last checkpoint; for `audit`: digests of all messages, signed by all parties

With the run's masks gone, recorded messages reveal nothing about the data, even to who reads this disk
later.
"""

from veilmeans.io.storage.checkpoints import Checkpoints, shard_numbers
from veilmeans.schemas.run_folder import (
    ASSIGNMENTS,
    CENTROIDS,
    CHOSEN,
    ENCRYPTED,
    OPERANDS,
    SCORES,
    SEED_WEIGHTS,
    SEEDS,
    RunFolder,
)


def forget_iterations(folder: RunFolder, done: int, kept_at: int) -> None:
    """Delete what no later command needs of an ended run of `done` iterations. Safe to repeat.

    `kept_at`: the number under which the shares of the rows' results are kept.
    """
    run = Checkpoints(folder, b"")
    for kind in (OPERANDS, ENCRYPTED, SEEDS, SEED_WEIGHTS):
        run.drop_all_but(kind, None)
    run.drop_all_but(CENTROIDS, None if shard_numbers(folder, CHOSEN) else done)
    for kind in (ASSIGNMENTS, SCORES):
        run.drop_all_but(kind, kept_at)
    run.drop_old(done)
