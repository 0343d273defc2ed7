"""The dealer's work for one shard: the corrections that the parties' seeds determine, by who receives them.

It needs shapes and seeds. It never sees data, nor any message between the parties.
"""

from collections.abc import Sequence

import numpy as np

from veilmeans.crypto.correlations import Part, corrections
from veilmeans.io.triples import correction_name, store_address
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array
from veilmeans.transforms.plan import Needs


def deal(seeds: Sequence[bytes], store: str, number: int, where: Address, needs: Needs) -> dict[int, dict[str, Array]]:
    """Party -> name -> correction, for all stages of the shard and iteration of `where`."""
    dealt: dict[int, dict[str, Array]] = {}
    for stage, asked in needs.items():
        address = store_address(store, number, Address(where.run, where.iteration, stage, where.shard))
        for need in asked:
            for part, array in corrections(seeds, address, need.scope, need.kind).items():
                name = correction_name(stage, need.label(part.name))
                dealt.setdefault(part.holders[-1], {})[name] = array
    return dealt


def corrected_parts(party: int, needs: Needs) -> dict[str, Part]:
    """The names under which `party` gets corrections, each with the part that it corrects."""
    return {
        correction_name(stage, need.label(part.name)): part
        for stage, asked in needs.items()
        for need in asked
        for part in need.kind.bound()
        if part.holders[-1] == party
    }


def corrections_for(party: int, needs: Needs) -> dict[str, Array]:
    """The same names, each with an array of zeros in its shape and type."""
    return {name: np.zeros(part.shape, part.dtype) for name, part in corrected_parts(party, needs).items()}
