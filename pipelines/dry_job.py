"""`offline --dry-run` and `reveal --dry-run`: what the store will hold and who sends it, what an opening tells whom.

Configuration, certificates and what lies on disk are checked as the commands do; nothing is written, nothing is sent.
"""

from veilmeans.io.connect import check_door, load_identity, load_peer_certificates
from veilmeans.io.results import ASSIGNMENTS, CENTROIDS, RESULT
from veilmeans.io.shaper import LAN, WAN
from veilmeans.pipelines.dry_run import check_writable
from veilmeans.pipelines.estimate import Offline
from veilmeans.pipelines.jobs import asked_engines, job_plan
from veilmeans.pipelines.later import load_opening
from veilmeans.pipelines.offline import check_offline
from veilmeans.pipelines.party import finished
from veilmeans.pipelines.reveal import Finished, policy_of, read_shares, require_inertia
from veilmeans.pipelines.settle import choices, left_open, own_costs
from veilmeans.pipelines.store_size import offline_of
from veilmeans.pipelines.traffic import steps_with_stages, traffic_of
from veilmeans.pipelines.units import seconds, size
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.jobs import RevealConfig
from veilmeans.transforms.engines import Chosen
from veilmeans.transforms.seat import checkpoints, run_seed


def dry_offline(config: JobConfig) -> str:
    """For a party what it gets and makes, for the dealer what it sends."""
    check_offline(config, keep=False)
    settings = config.offline()
    if finished(settings):
        return f"the store {config.needed_triples.store!r} is made already: nothing would be done"
    check_writable(config.storage)
    load_identity(settings)
    load_peer_certificates(settings)
    check_door(config)
    chosen = _engines(config)
    plan = job_plan(config, chosen)
    lines = [f"store {config.needed_triples.store!r}, made by {config.dealer} for {', '.join(config.parties)}"]
    if left_open(config):
        lines.append("engines are chosen when all parties have said what operations cost them; here, as we find them")
    if config.party == config.dealer:
        made = [offline_of(config, plan, index) for index in range(len(config.parties))]
        lines += [_line(f"would send {name}", each) for name, each in zip(config.parties, made, strict=True)]
        lines.append(f"would write a seed below {settings.run_folder}; data are never seen")
        return "\n".join(lines)
    mine = offline_of(config, plan, config.me.index)
    lines.append(_line(f"would get from {config.dealer}", mine))
    lines += [f"  {each.count:,} {each.unit} of {each.kind}" for each in mine.triples]
    if mine.ciphertexts:
        made_here = f"would make {mine.ciphertexts:,} ciphertexts, {size(mine.cipher_bytes)}, and a key pair"
        lines.append(f"{made_here}; public keys go to {', '.join(n for n in config.parties if n != config.party)}")
    lines.append(f"would write {size(mine.bytes_stored)} below {config.store_folder}, with a seed (mode 0600)")
    return "\n".join(lines)


def _engines(config: JobConfig) -> Chosen:
    if not left_open(config):
        return asked_engines(config)
    found = choices(config, [own_costs(config, keep=False)])
    return tuple((each.distance, each.update) for each in found.values())


def _line(what: str, made: Offline) -> str:
    link = ", ".join(
        f"{name} {seconds(made.bytes_received * 8 / each.rate)} s" for name, each in (("LAN", LAN), ("WAN", WAN))
    )
    amount = f"{size(made.bytes_received)} in {made.messages:,} messages and a seed"
    return f"{what}: {amount} ({link}), for {made.runs:,} × {made.iterations:,} iterations"


def dry_reveal(config: JobConfig) -> str:
    """What kmeans.reveal names now, from the shares that lie here."""
    config = config.online()
    reveal, trained, opening = load_opening(config)
    if finished(opening):
        return f"this was opened already: the results are in {config.run_folder}"
    load_identity(config)
    load_peer_certificates(config)
    check_door(config)
    _check_shares(config, trained, reveal)
    lines = [f"{config.party} in run {config.run!r} with {', '.join(config.peers)}, after {trained.done:,} iterations"]
    for what, who in reveal.model_dump(include={"assignments", "centroids", "inertia"}).items():
        lines += [f"would open {what} to {', '.join(who)}"] if who else []
    for step, counted in steps_with_stages(config, trained.job.kmeans):
        if step.when == "end":
            moved = traffic_of(config, counted)
            lines.append(
                f"  {step.name}: {moved.rounds} round, {size(moved.bytes_sent)} sent, {size(moved.bytes_received)} "
                "received"
            )
    return "\n".join([*lines, *(f"would write {config.run_folder / name}" for name in _files(config, reveal))])


def _check_shares(config: JobConfig, trained: Finished, reveal: RevealConfig) -> None:
    """Damage is told, as it is before anything is sent."""
    seed = run_seed(config, trained.job.seat.binding)
    policy = policy_of(config, trained.job.kmeans.layout, reveal)
    require_inertia(trained, policy, read_shares(trained, policy, checkpoints(config.run_folder, seed)))


def _files(config: JobConfig, reveal: RevealConfig) -> list[str]:
    found = [ASSIGNMENTS] if config.party in reveal.assignments else []
    return [*found, *([CENTROIDS] if config.party in reveal.centroids else []), RESULT]
