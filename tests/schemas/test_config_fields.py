"""The marks of configuration fields: who must agree on them, and which are paths. Private is the default."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from support.config_text import changed, gateway, horizontal, without_dealer
from veilmeans.pipelines.session.agreed_terms import agreed_terms
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.config_fields import (
    AGREED_IN_RUNS,
    CONNECTION,
    PATH,
    Agreed,
    ConfigSection,
    agreed_fields,
    agreement,
    bound_fields,
    connection_fields,
    map_paths,
    model_fields,
    section_types,
)
from veilmeans.schemas.kmeans_config import REVEALED

ALWAYS = "offline train predict reveal"
RUNS = "train predict"
MARKS = {
    "party": "connection",
    "run": "reveal",
    "parties": f"{ALWAYS} align of-model",
    "dealer": ALWAYS,
    "certificate": "path connection",
    "key": "path connection",
    "seed": "path",
    "storage": "path connection",
    "scratch": "path",
    "shared": "path connection",
    "workers": "connection",
    "workers.listen": "",
    "workers.address": "",
    "workers.token": "path",
    "listen": "connection",
    "gateway": "connection",
    "peers": "connection",
    "peers.certificate": "path",
    "peers.address": "",
    "peers.outbox": "path",
    "exchange": "connection",
    "exchange.kind": "",
    "exchange.outbox": "path",
    "exchange.max_message_mb": "",
    "exchange.timeout_s": "",
    "exchange.shape": "",
    "exchange.shape.rate_mbps": "",
    "exchange.shape.round_trip_ms": "",
    "link": "",
    "link.rate_mbps": "offline train predict",
    "link.round_trip_ms": "offline train predict",
    "beam": "",
    "beam.runner": "",
    "beam.workers": "",
    "beam.worker_type": "",
    "beam.rows_per_shard": ALWAYS,
    "beam.values_per_column_shard": ALWAYS,
    "beam.state": "",
    "beam.rounds": "",
    "beam.attempts": "",
    "beam.options": "",
    "audit": "",
    "audit.keep": "",
    "triples": "",
    "openings": "",
    "openings.limit": f"{RUNS} reveal unbound",
    "triples.ledger": "path",
    "triples.store": RUNS,
    "triples.runs": "offline",
    "triples.iterations": "offline",
    "triples.rows": "offline train predict",
    "triples.provider": "offline train predict",
    "align": "",
    "align.name": "align",
    "align.reveal": "align",
    "align.case": "align",
    "align.duplicates": "",
    "align.missing": "",
    "kmeans": "",
    "kmeans.data": "path",
    "kmeans.id": "",
    "kmeans.columns": "",
    "kmeans.label": "",
    "kmeans.categories": "train horizontal unbound",
    "kmeans.one_hot": "",
    "kmeans.unseen": "",
    "kmeans.multi_hot": "",
    "kmeans.missing": "",
    "kmeans.layout": f"{RUNS} of-model",
    "kmeans.rows": RUNS,
    "kmeans.features": f"{RUNS} of-model",
    "kmeans.clusters": f"{RUNS} of-model",
    "kmeans.sweep": "offline train",
    "kmeans.max_iter": "train",
    "kmeans.tol": "train",
    "kmeans.starts": "train",
    "kmeans.final_assignment": "train",
    "kmeans.iterations_per_pipeline": "",
    "kmeans.init": "",
    "kmeans.init.method": "train",
    "kmeans.init.seed": "train",
    "kmeans.init.indices": "train",
    "kmeans.normalise": "",
    "kmeans.normalise.method": f"{RUNS} of-model",
    "kmeans.normalise.bound": f"{RUNS} of-model",
    "kmeans.normalise.ranges": f"{RUNS} horizontal of-model",
    "kmeans.normalise.aggregate": f"{RUNS} of-model",
    "kmeans.products": RUNS,
    "kmeans.products.distance": RUNS,
    "kmeans.products.update": RUNS,
    "kmeans.sparse": RUNS,
    "kmeans.sparse.nonzeros": RUNS,
    "kmeans.sparse.integer_valued": RUNS,
    "kmeans.cipher": "",
    "kmeans.cipher.scheme": RUNS,
    "kmeans.cipher.bits": RUNS,
    "kmeans.drop_bits": RUNS,
    "kmeans.assignment": RUNS,
    "kmeans.outliers": "",
    "kmeans.profile_minimum": "train",
    "kmeans.outliers.count": RUNS,
    "kmeans.outliers.fraction": RUNS,
    "kmeans.outliers.during_training": "train",
    "kmeans.reveal": "",
    "kmeans.reveal.assignments": f"{RUNS} reveal unbound",
    "kmeans.reveal.centroids": f"{RUNS} reveal unbound",
    "kmeans.reveal.columns": f"{RUNS} reveal unbound",
    "kmeans.reveal.inertia": f"{RUNS} reveal unbound",
    "kmeans.reveal.scores": f"{RUNS} reveal unbound",
    "kmeans.reveal.outliers": f"{RUNS} reveal unbound",
    "kmeans.reveal.explanations": f"{RUNS} reveal unbound",
    "kmeans.reveal.contributions": f"{RUNS} reveal unbound",
    "kmeans.reveal.minimum_size": f"{RUNS} reveal optional of-model",
    "kmeans.reveal.profiles": f"{RUNS} reveal unbound",
    "kmeans.predict": "",
    "kmeans.predict.model": "predict",
    "kmeans.predict.margin": "predict",
    "kmeans.predict.out_of_range": "",
}
"""Every field and its marks. A change here changes what peers learn."""


def marks_below(section: type[ConfigSection], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, field in section.model_fields.items():
        words = [mark for mark in (PATH, CONNECTION) if mark in field.metadata]
        mark = agreement(field)
        if mark is not None:
            words += mark.commands
            words += [
                word
                for word, said in (
                    ("horizontal", mark.horizontal),
                    ("optional", mark.optional),
                    ("unbound", not mark.bound),
                    ("of-model", mark.of_model),
                )
                if said
            ]
        yield f"{prefix}{name}", " ".join(words)
        for below in section_types(field.annotation):
            yield from marks_below(below, f"{prefix}{name}.")


def test_every_field_has_the_marks_of_the_table() -> None:
    assert dict(marks_below(JobConfig)) == MARKS


class Inner(ConfigSection):
    """A section with a field that nobody marked."""

    agreed: Annotated[int, AGREED_IN_RUNS] = 1
    forgotten: str = "secret"


class Outer(ConfigSection):
    """Sections alone and by name."""

    forgotten: str = "secret"
    one: Inner = Inner()
    many: Annotated[dict[str, Inner | str], AGREED_IN_RUNS] = Field({"a": Inner(), "b": "plain"})
    unmarked: dict[str, Inner] = Field({"a": Inner()})
    none: Inner | None = None
    file: Annotated[str | None, PATH] = None


def test_a_field_without_a_mark_is_neither_compared_nor_bound() -> None:
    expected = {"one.agreed": 1, "many": {"a": {"agreed": 1}, "b": "plain"}}
    assert agreed_fields(Outer(), "train", vertical=True) == expected
    assert bound_fields(Outer(), "train") == expected
    assert agreed_fields(Outer(), "offline", vertical=True) == {}


def test_a_new_field_without_a_mark_is_not_in_the_handshake_terms() -> None:
    class NewJobConfig(JobConfig):
        comment: str = Field("secret", description="a field that somebody adds")

    raw = gateway()
    for command in ("offline", "train", "predict", "reveal"):
        new = agreed_terms(NewJobConfig.model_validate({**raw, "comment": "also secret"}), command)
        assert new == agreed_terms(JobConfig.model_validate(raw), command)


def test_fields_are_compared_in_the_handshakes_of_their_commands() -> None:
    config = JobConfig.model_validate(gateway())
    names = {command: set(agreed_terms(config, command)) for command in ("offline", "train", "predict", "reveal")}
    always = {"protocol version", "parties", "dealer", "beam.rows_per_shard", "beam.values_per_column_shard"}
    link = {"link.rate_mbps", "link.round_trip_ms"}
    store = {f"triples.{each}" for each in ("runs", "iterations", "rows", "provider")}
    assert names["offline"] == always | link | store | {"kmeans.sweep"}
    policy = {f"kmeans.reveal.{name}" for name in (*REVEALED, "columns", "contributions")} | {"openings.limit"}
    assert names["reveal"] == always | {"run"} | policy
    assert names["train"] - names["predict"] == {
        "kmeans.sweep",
        "kmeans.max_iter",
        "kmeans.tol",
        "kmeans.starts",
        "kmeans.profile_minimum",
        "kmeans.final_assignment",
    } | {f"kmeans.init.{name}" for name in ("method", "seed", "indices")}
    assert always | link | policy | {"triples.store", "kmeans.rows", "kmeans.cipher.bits"} < names["predict"]


def test_a_provider_that_is_left_out_is_compared_as_the_default() -> None:
    for raw, provider in ((gateway(), "dealer"), (without_dealer(), "ot")):
        terms = agreed_terms(JobConfig.model_validate(raw), "offline")
        assert terms["triples.provider"] == provider
        spelled_out = changed(raw, triples__provider=provider)
        assert agreed_terms(JobConfig.model_validate(spelled_out), "offline") == terms


def test_ranges_and_categories_are_compared_in_the_horizontal_layout_only() -> None:
    compared = {"kmeans.normalise.ranges", "kmeans.categories"}
    assert not compared & set(agreed_terms(JobConfig.model_validate(gateway()), "train"))
    assert compared < set(agreed_terms(JobConfig.model_validate(horizontal()), "train"))
    assert compared & set(agreed_terms(JobConfig.model_validate(horizontal()), "predict")) == {
        "kmeans.normalise.ranges"
    }


def test_a_run_is_bound_to_what_was_agreed_but_not_to_who_learns_the_result() -> None:
    job = JobConfig.model_validate(gateway()).required_kmeans
    agreed, bound = agreed_fields(job, "train", vertical=True), bound_fields(job, "train")
    assert set(agreed) - set(bound) == {f"reveal.{name}" for name in (*REVEALED, "columns", "contributions")}
    assert set(bound) - set(agreed) == {"normalise.ranges"}


def test_values_are_as_json_has_them() -> None:
    raw = horizontal()
    raw["kmeans"] |= {
        "categories": {"a": ["x", "y"]},
        "products": {"shop": {"distance": "he"}},
        "sparse": {"shop": {"nonzeros": 2, "integer_valued": True}},
    }
    found = agreed_fields(JobConfig.model_validate(raw), "train", vertical=False)
    assert found["parties"] == ["payco", "shop"]
    assert found["kmeans.categories"] == {"a": ["x", "y"]}
    assert found["kmeans.products"] == {"shop": {"distance": "he", "update": "auto"}}
    assert found["kmeans.sparse"] == {"shop": {"nonzeros": 2.0, "integer_valued": True}}


def test_a_prediction_keeps_the_fields_of_its_model() -> None:
    assert set(model_fields(JobConfig.model_validate(gateway()))) == {
        "parties", "kmeans.layout", "kmeans.features", "kmeans.clusters", "kmeans.normalise.method",
        "kmeans.normalise.bound", "kmeans.normalise.ranges", "kmeans.normalise.aggregate",
        "kmeans.reveal.minimum_size",
    }  # fmt: skip


def test_an_exchange_does_not_depend_on_the_run() -> None:
    assert connection_fields(JobConfig).isdisjoint({"run", "beam", "triples", "kmeans"})
    assert connection_fields(JobConfig) > {"party", "key", "certificate", "peers", "exchange", "listen", "storage"}


def test_paths_are_changed_and_everything_else_is_left() -> None:
    class Nested(ConfigSection):
        by_name: dict[str, Outer] = Field({})
        alone: Outer | None = None

    content = {
        "by_name": {"file": {"file": "a", "forgotten": "b"}},
        "alone": {"file": "c", "colour": {"file": "d"}},
        "file": "e",
    }
    assert map_paths(Nested, content, str.upper) == {
        "by_name": {"file": {"file": "A", "forgotten": "b"}},
        "alone": {"file": "C", "colour": {"file": "d"}},
        "file": "e",
    }
    for malformed in ({"by_name": 5}, {"alone": [1]}, {"alone": {"file": 7}}, {"by_name": {"x": "text"}}):
        assert map_paths(Nested, malformed, str.upper) == malformed


def test_a_mark_compares_by_command_and_layout() -> None:
    mark = Agreed(("train",), horizontal=True)
    assert mark.compares("train", vertical=False)
    assert not mark.compares("train", vertical=True)
    assert not mark.compares("predict", vertical=False)
