"""The dealer's work: seeds for all, and for the last party the shares of products that the seeds determine.

  c_last = (Σ_i a_i)·(Σ_i b_i) − Σ_{i<last} c_i,   with a_i, b_i, c_i expanded from P_i's seed

It needs shapes and seeds. It never sees data, nor any message between the parties.
"""

from collections.abc import Sequence

from veilmeans.crypto import ring
from veilmeans.schemas.address import Address
from veilmeans.transforms.randomness import Shape, mul_shares


def mul_correction(seeds: Sequence[bytes], address: Address, shape: Shape) -> ring.Ring:
    """The last party's share of c at this address."""
    shares = [mul_shares(seed, address, shape) for seed in seeds]
    product = ring.total(s.a for s in shares) * ring.total(s.b for s in shares)
    return product - ring.total(s.c for s in shares[:-1])
