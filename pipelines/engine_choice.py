"""The engine of each product in a plan, and why: asked for, settled by the store, or chosen by numbers."""

from collections.abc import Mapping

from veilmeans.pipelines.choice import Choice
from veilmeans.pipelines.costs import Estimate
from veilmeans.pipelines.estimate import EngineChoice, Json
from veilmeans.pipelines.units import short
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.engines import Chosen

_PRODUCTS = ("distance", "update")


def engine_choices(
    config: JobConfig, found: Mapping[str, Choice], chosen: Chosen, settled: bool
) -> tuple[EngineChoice, ...]:
    """For each owner and product; `settled`: the store was made for `chosen`."""
    job, result = config.needed_kmeans, []
    products = _PRODUCTS if job.predict is None else _PRODUCTS[:1]
    for (party, choice), engines in zip(found.items(), chosen, strict=True):
        result.append(_operand(party, choice, "beaver" in engines))
        for product, engine in zip(products, engines, strict=False):
            asked = getattr(job.engines_of(party), product)
            estimates = {name: _json(each) for name, each in choice.estimates[product].items()}
            why = _why(choice, product, engine, asked, settled)
            result.append(EngineChoice(party, product, engine, asked, why, estimates))
    return tuple(result)


def _operand(party: str, choice: Choice, sent: bool) -> EngineChoice:
    """The masked matrix that both of an owner's products by beaver share."""
    why = "the masked matrix is sent once" if sent else "no masked matrix is sent"
    estimates = {name: _json(each) for name, each in choice.estimates["operand"].items()}
    return EngineChoice(party, "operand", "beaver" if sent else "none", "", why, estimates)


def _why(choice: Choice, product: str, engine: str, asked: str, settled: bool) -> str:
    if asked != "auto":
        return "as kmeans.products asks"
    if settled:
        return "the store was made for it"
    if choice.refused and engine == "he":
        return f"beaver is out of the question: {choice.refused}"
    other = "he" if engine == "beaver" else "beaver"
    mine, theirs = (_seconds(choice, product, name) for name in (engine, other))
    if mine <= theirs:
        return f"{short(mine)} s an iteration, {other} {short(theirs)} s"
    return f"{short(mine)} s an iteration, {other} {short(theirs)} s, but with the other product it is quicker"


def _seconds(choice: Choice, product: str, engine: str) -> float:
    """Of an iteration; the masked matrix that beaver needs is in it."""
    operand = choice.estimates["operand"]["beaver"].seconds if engine == "beaver" else 0.0
    return choice.estimates[product][engine].seconds + operand


def _json(each: Estimate) -> Json:
    return {
        "seconds": each.seconds,
        "bytes": each.bytes,
        "offline_seconds": each.offline_seconds,
        "offline_bytes": each.offline_bytes,
        "why": each.why,
    }
