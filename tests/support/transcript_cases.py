"""Cases for tests of transcripts: the protocols of good starts, with shares that are not random."""

import numpy as np

from support.transcripts import ROWS, Case, states
from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.kmeans_plus_plus import Seeding, nearest
from veilmeans.transforms.primitives.best_start import choose_best, take_counts
from veilmeans.transforms.products.engine_parameters import EngineParameters
from veilmeans.transforms.statistics.weighted_choice import choose


def words(parties: int, secret: int, shape: tuple[int, ...] = (ROWS,)) -> list[ring.Ring]:
    """Make shares that are not random: all but the first are zero; or, for another secret, seven."""
    seven = 7 if secret else 0
    first = np.full(shape, (secret - seven * (parties - 1)) % 2**64, ring.DTYPE)
    return [first, *(np.full(shape, seven, ring.DTYPE) for _ in range(parties - 1))]


def on_weights(parties: int) -> Case:
    """Weights of which all are the limit of a row, and an own number of the shard."""

    def begin(secret: int, rows: int) -> list[Arrays]:
        v, one = words(parties, secret * 3, (1, rows)), words(parties, secret * 2**40, (1,))
        return states(v=v, before=one, t=one, number=[np.array([0])] * parties)

    return Case(choose(1, parties), parties, begin)


def on_squared_distances(parties: int) -> Case:
    """The distances, weights and norms of one choice."""
    seeding = Seeding(Layout(True, (1,) * parties, (1,) * parties, 1), 1, 1, 42, 20, EngineParameters((), ()))

    def begin(secret: int, rows: int) -> list[Arrays]:
        d, v = (words(parties, secret * value, (1, rows)) for value in (2**41 + 5, 77))
        return states(d=d, v=v, u=words(parties, secret * 9, (1,)), x2=words(parties, secret * 11, (rows,)))

    return Case(nearest(seeding), parties, begin)


def on_starts(parties: int) -> Case:
    """Norms and counts of four starts, each of which has many clusters."""

    def begin(secret: int, rows: int) -> list[Arrays]:
        return states(u=words(parties, secret * 2**40, (rows,)), n=words(parties, secret * 200, (rows,)))

    return Case((choose_best(4, parties) + take_counts(4)).named("starts"), parties, begin)
