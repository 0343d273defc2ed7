"""The names for one's own protocols of rounds; examples/custom_protocol/ uses them.

1. A `Round` is a pair of functions, `send` and `receive`, with an exchange of messages between them. A `Protocol` is a
   sequence of rounds: `SHARE + multiply("x", "y", "z")`.
2. A description is a function over an `Executor`: which `Step` runs over which shards (`Over`), what is read (`Load`),
   added up and written (`Keep`).
3. The description runs on the `BareExecutor` (a loop in one process) or on Beam (`RunDescription`), with a
   `PartyContext` made from the party's configuration. The `TraceExecutor` runs it on zeros: it finds the correlated
   randomness that each stage needs, and `deal_corrections` makes it for the parties' `TripleStore`s.
"""

from veilmeans.io.storage.triple_store import Manifest, TripleStore
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.layout import ShardShape
from veilmeans.schemas.party import Party
from veilmeans.transforms.offline.dealer import deal_corrections
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.primitives.share_and_open import OPEN, SHARE
from veilmeans.transforms.rounds.beam_executor import BeamExecutor, RunDescription
from veilmeans.transforms.rounds.executor import BareExecutor, Executor, Keep, Load, Over, Step, not_counted
from veilmeans.transforms.rounds.party_context import OpenPartyContext, PartyContext
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent
from veilmeans.transforms.rounds.trace_executor import TraceExecutor

__all__ = [
    "OPEN",
    "SHARE",
    "Address",
    "Arrays",
    "BareExecutor",
    "BeamExecutor",
    "Executor",
    "Inbox",
    "Keep",
    "Load",
    "Manifest",
    "OpenPartyContext",
    "Over",
    "Party",
    "PartyContext",
    "Protocol",
    "Round",
    "RunDescription",
    "Sent",
    "ShardShape",
    "Step",
    "TraceExecutor",
    "TripleStore",
    "deal_corrections",
    "multiply",
    "not_counted",
]
