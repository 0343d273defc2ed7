"""A configuration: read, checked once, frozen; every mistake is one sentence with the file and the field."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from support.config_text import JOB, Raw, gateway
from support.parties import make_configs, write_config
from veilmeans.pipelines.session.kmeans_from_config import store_iterations
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.kmeans_config import NormaliseConfig
from veilmeans.schemas.message import MessageKey


def files() -> Raw:
    raw = gateway()
    del raw["listen"]
    raw["exchange"] = {"kind": "files", "outbox": "outbox"}
    for name, peer in raw["peers"].items():
        del peer["address"]
        peer["outbox"] = f"../{name}/outbox"
    return raw


def vertical() -> Raw:
    """K-means over columns of two parties."""
    raw = changed(gateway(), sums=None, triples__rows=None)
    features = {"payco": 2, "shop": 3}
    raw["kmeans"] = {"data": "data.csv", "layout": "vertical", "rows": 100, "features": features, "clusters": 4}
    return raw


def horizontal() -> Raw:
    """K-means over rows of two parties."""
    return changed(
        vertical(),
        kmeans__layout="horizontal",
        kmeans__rows={"payco": 60, "shop": 40},
        kmeans__features=3,
        kmeans__normalise={"aggregate": True},
    )


def written(folder: Path, raw: object) -> Path:
    file = folder / "config.yaml"
    file.write_text(raw if isinstance(raw, str) else yaml.safe_dump(raw, sort_keys=False))
    return file


def changed(raw: Raw, **fields: Any) -> Raw:
    """`raw` with other fields; `a__b` is field b of field a, and None removes a field."""
    for path, value in fields.items():
        *outer, last = path.split("__")
        target = raw
        for name in outer:
            target = target.setdefault(name, {})
        if value is None:
            del target[last]
        else:
            target[last] = value
    return raw


def mistake(file: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        load_config(file)
    sentence = raised.value.sentence
    assert str(file) in sentence
    assert "\n" not in sentence
    return sentence.replace(str(file), "FILE")


@pytest.mark.parametrize("make", [gateway, files])
def test_a_configuration_is_read(tmp_path: Path, make: Callable[[], Raw]) -> None:
    config = load_config(written(tmp_path, make()))
    assert (config.party, config.me.index, config.me.names) == ("payco", 0, ("payco", "shop"))
    assert config.exchange.kind == make.__name__


def test_paths_are_relative_to_the_file_and_addresses_of_storage_are_not(tmp_path: Path) -> None:
    raw = changed(files(), peers__shop__outbox="gs://shop/outbox", scratch="hdfs://here/scratch", key="/etc/payco.key")
    config = load_config(written(tmp_path, raw))
    here = tmp_path.resolve()
    assert config.certificate == here / "payco.crt"
    assert config.key == Path("/etc/payco.key")
    assert config.storage == here / "storage"
    assert config.run_folder == here / "storage" / "runs" / "run-1"
    assert config.peers["shop"].certificate == here / "shop.crt"
    assert config.peers["shop"].outbox == "gs://shop/outbox"
    assert config.exchange.outbox == str(here / "outbox")
    assert config.peers["notary"].outbox == str(here / "../notary/outbox")
    assert config.scratch == "hdfs://here/scratch"
    assert config.sums is not None
    assert config.sums.data == here / "data.csv"


def test_a_configuration_is_frozen(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, gateway()))
    for part, field in (
        (config, "run"),
        (config.exchange, "kind"),
        (config.engine, "workers"),
        (config.sums, "bound"),
        (config.triples, "runs"),
    ):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, field, "x")
    with pytest.raises(ValidationError, match="frozen"):
        config.peers["shop"].address = "x"  # type: ignore[misc]


def test_a_configuration_comes_back_from_its_pickle_and_from_its_file(tmp_path: Path) -> None:
    for config in (load_config(written(tmp_path, files())), *make_configs(tmp_path, 3, dealer="notary").values()):
        assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301
        assert load_config(write_config(config, tmp_path / "again.yaml")) == config


def test_a_dealer_is_no_party(tmp_path: Path) -> None:
    raw = changed(gateway(), party="notary", peers__notary=None)
    raw["peers"]["payco"] = {"certificate": "payco.crt", "address": "127.0.0.1:4000"}
    assert load_config(written(tmp_path, raw)).party == "notary"


def test_a_store_serves_one_run_of_as_many_iterations_as_the_job_takes_unless_told_otherwise(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, gateway()))
    assert config.required_triples.model_dump() == {"store": "october", "rows": 5, "runs": 1, "iterations": None}
    assert store_iterations(config) == 1
    assert store_iterations(load_config(written(tmp_path, vertical()))) == 10
    assert store_iterations(load_config(written(tmp_path, changed(vertical(), kmeans__max_iter=3)))) == 3
    told = changed(vertical(), triples__iterations=4)
    assert store_iterations(load_config(written(tmp_path, told))) == 4
    assert config.store_folder == config.storage / "triples" / "october"
    other = config.model_copy(update={"run": "other"})
    assert other.store_folder == config.store_folder


def test_a_configuration_that_describes_no_store_is_told_where_one_is_needed(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, changed(gateway(), triples=None)))
    assert config.triples is None
    for needed in (lambda: config.required_triples, lambda: config.store_folder, config.offline):
        with pytest.raises(ConfigError) as raised:
            needed()
        assert raised.value.sentence == "the configuration of payco describes no store of triples: add `triples:`"


def test_the_dealer_is_a_peer_while_a_store_is_made_and_none_in_a_run(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, gateway()))
    online, offline = config.online(), config.offline()
    assert (set(config.peers), set(offline.peers), set(online.peers)) == (
        {"shop", "notary"},
        {"shop", "notary"},
        {"shop"},
    )
    assert online.model_copy(update={"peers": config.peers}) == config
    assert offline.run == "store-october"
    assert offline.model_copy(update={"run": config.run}) == config
    assert offline.run_folder == config.storage / "runs" / "store-october"


def test_the_longest_name_of_a_store_still_names_messages(tmp_path: Path) -> None:
    offline = load_config(written(tmp_path, changed(gateway(), triples__store="x" * 74))).offline()
    key = MessageKey(Address(offline.run, 0, "offline.0", 0), "notary", "payco")
    assert MessageKey.parse(key.to_json()) == key


def test_a_missing_file_a_folder_and_what_is_no_yaml_are_told(tmp_path: Path) -> None:
    assert mistake(tmp_path / "none.yaml") == "the configuration FILE cannot be read: No such file or directory"
    assert mistake(tmp_path) == "the configuration FILE cannot be read: Is a directory"
    assert mistake(written(tmp_path, "party: payco\nrun: [1, 2\nx: y\n")) == "FILE is no YAML in line 3"
    file = tmp_path / "binary.yaml"
    file.write_bytes(b"party: \xff\xfe")
    assert mistake(file) == "FILE is no YAML"


@pytest.mark.parametrize("text", ["", "just text", "- a\n- b\n", "5"])
def test_what_is_no_mapping_is_told(tmp_path: Path, text: str) -> None:
    assert mistake(written(tmp_path, text)).startswith("FILE must be a mapping")


NAME_RULE = "must be 1 to 80 letters, digits, dots, dashes or underscores, beginning with a letter or digit"
MISTAKES: list[tuple[Raw, str]] = [
    ({"party": None}, "party: Field required"),
    ({"peers__shop__certificate": None}, "peers.shop.certificate: Field required"),
    ({"colour": "red"}, "colour: Extra inputs are not permitted"),
    ({"exchange__colour": "red"}, "exchange.colour: Extra inputs are not permitted"),
    ({"sums__colour": "red"}, "sums.colour: Extra inputs are not permitted"),
    ({"run": 5}, "run: Input should be a valid string"),
    ({"run": "../x"}, f"run: '../x' {NAME_RULE}"),
    ({"run": "x" * 81}, f"run: '{'x' * 81}' {NAME_RULE}"),
    ({"party": ".x"}, f"party: '.x' {NAME_RULE}"),
    ({"party": "bank"}, "party: 'bank' is neither in parties nor the dealer"),
    ({"parties": "payco"}, "parties: Input should be a valid tuple"),
    ({"parties": ["payco"]}, "parties: Tuple should have at least 2 items after validation, not 1"),
    ({"parties": ["payco", "a/b"]}, f"parties: 'a/b' {NAME_RULE}"),
    ({"parties": ["payco", "shop", "payco"]}, "parties: a name stands there twice"),
    ({"dealer": "sh op"}, f"dealer: 'sh op' {NAME_RULE}"),
    ({"dealer": "shop"}, "dealer: must not be one of the parties, it would know the other's masks"),
    ({"peers__shop": None}, "peers: must be exactly notary, shop"),
    ({"peers__bank": {"certificate": "x", "address": "a:1"}}, "peers: must be exactly notary, shop"),
    ({"dealer": None}, "peers: must be exactly shop"),
    ({"peers__shop__address": None}, "peers.shop.address: needed, because exchange.kind is gateway"),
    ({"listen": None}, "listen: needed, because exchange.kind is gateway"),
    ({"listen": "4000"}, "listen: must be host:port"),
    ({"listen": ":4000"}, "listen: must be host:port"),
    ({"listen": "here:"}, "listen: must be host:port"),
    ({"listen": "here:x"}, "listen: must be host:port"),
    ({"peers__shop__address": "here:65536"}, "peers.shop.address: must be host:port"),
    ({"exchange__kind": "pigeon"}, "exchange.kind: Input should be 'gateway' or 'files'"),
    ({"exchange__timeout_s": 0}, "exchange.timeout_s: Input should be greater than 0"),
    ({"exchange__max_message_mb": "many"}, "exchange.max_message_mb: Input should be a valid integer"),
    ({"exchange__shape": {"rate_mbps": 0, "round_trip_ms": 1}}, "exchange.shape.rate_mbps: Input should be greater"),
    ({"engine__workers": 0}, "engine.workers: Input should be greater than or equal to 1"),
    ({"engine__rows_per_shard": 0}, "engine.rows_per_shard: Input should be greater than or equal to 1"),
    ({"engine__state": "gas"}, "engine.state: Input should be"),
    ({"engine__attempts": 11}, "engine.attempts: Input should be less than or equal to 10"),
    ({"gateway": "none"}, "gateway: Input should be 'embedded' or 'separate'"),
    ({"sums__bound": 0}, "sums.bound: Input should be greater than or equal to 1"),
    ({"sums__bound": 2**70}, "sums.bound: Input should be less than"),
    ({"sums__bound": 1.5}, "sums.bound: Input should be a valid integer"),
    ({"sums__columns": ["a", "a"]}, "sums.columns: a column stands there twice"),
    ({"sums__product": ["payco.a"]}, "sums.product.1: Field required"),
    ({"sums": "yes"}, "sums: Input should be a valid dictionary"),
    ({"triples__store": None}, "triples.store: Field required"),
    ({"triples__store": "../x"}, f"triples.store: '../x' {NAME_RULE}"),
    ({"triples__store": "x" * 75}, "triples.store: String should have at most 74 characters"),
    ({"triples__rows": 0}, "triples.rows: Input should be greater than or equal to 1"),
    ({"triples__runs": 0}, "triples.runs: Input should be greater than or equal to 1"),
    ({"triples__iterations": 0}, "triples.iterations: Input should be greater than or equal to 1"),
    ({"triples__iterations": 1.5}, "triples.iterations: Input should be a valid integer"),
    ({"triples__colour": "red"}, "triples.colour: Extra inputs are not permitted"),
    ({"triples": "yes"}, "triples: Input should be a valid dictionary"),
    ({"key": 7}, "key: Input"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "sentence"), MISTAKES, ids=[sentence[:40] for _, sentence in MISTAKES])
def test_a_mistake_is_one_sentence_with_the_file_and_the_field(tmp_path: Path, fields: Raw, sentence: str) -> None:
    assert mistake(written(tmp_path, changed(gateway(), **fields))).startswith(f"FILE: {sentence}")


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ("peers__notary__outbox", "peers.notary.outbox: needed, because exchange.kind is files"),
        ("exchange__outbox", "exchange.outbox: needed, because exchange.kind is files"),
    ],
)
def test_an_exchange_by_files_needs_outboxes(tmp_path: Path, field: str, sentence: str) -> None:
    assert mistake(written(tmp_path, changed(files(), **{field: None}))) == f"FILE: {sentence}"


@pytest.mark.parametrize(
    ("engine", "root"),
    [
        ({}, "memory/payco"),
        ({"runner": "FlinkRunner"}, "SCRATCH"),
        ({"options": ["--direct_running_mode=multi_processing"]}, "SCRATCH"),
        ({"state": "scratch"}, "SCRATCH"),
        ({"state": "value", "runner": "FlinkRunner"}, "value"),
        ({"state": "memory"}, "memory/payco"),
    ],
)
def test_states_wait_in_memory_only_where_all_workers_share_it(tmp_path: Path, engine: Raw, root: str) -> None:
    config = load_config(written(tmp_path, changed(gateway(), engine=engine)))
    assert config.scratch_root == root.replace("SCRATCH", str(config.storage / "scratch"))


def test_flags_are_added_to_the_options_and_a_runner_replaces_the_configured_one(tmp_path: Path) -> None:
    config: JobConfig = load_config(written(tmp_path, changed(gateway(), engine={"options": ["--a=1"]})))
    assert config.with_flags([]) is config
    flagged = config.with_flags(["--runner", "FlinkRunner", "--parallelism=2", "--streaming"])
    assert flagged.engine.runner == "FlinkRunner"
    assert flagged.engine.options == ("--a=1", "--parallelism=2", "--streaming")
    assert flagged.model_copy(update={"engine": config.engine}) == config
    assert config.with_flags(["--runner=PrismRunner"]).engine.runner == "PrismRunner"


# K-means.
@pytest.mark.parametrize("make", [vertical, horizontal])
def test_a_job_of_k_means_is_read(tmp_path: Path, make: Callable[[], Raw]) -> None:
    config = load_config(written(tmp_path, make()))
    job = config.kmeans
    assert job is not None
    assert job.layout == make.__name__
    assert job.data == str(tmp_path.resolve() / "data.csv")
    assert (job.max_iter, job.tol, job.iterations_per_pipeline, job.drop_bits) == (10, 1e-4, None, None)
    assert (job.init.method, job.init.seed, job.init.indices) == ("indices", 0, None)
    assert job.reveal.model_dump() == {"assignments": (), "centroids": (), "columns": "own", "inertia": ()}
    assert load_config(write_config(config, tmp_path / "again.yaml")) == config
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301


def test_data_on_another_filesystem_keep_their_address(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, changed(vertical(), kmeans__data="gs://payco/*.parquet")))
    assert config.kmeans is not None
    assert config.kmeans.data == "gs://payco/*.parquet"


@pytest.mark.parametrize(
    ("normalise", "interval"),
    [
        ({}, (0, 1)),
        ({"bound": 1}, (0, 1)),
        ({"ranges": {"a": [-5, 5]}}, (0, 1)),
        ({"method": "zscore"}, (-16, 16)),
        ({"method": "zscore", "bound": 8}, (-8, 8)),
        ({"method": "none", "bound": 0.5}, (-0.5, 0.5)),
    ],
    ids=str,
)
def test_normalised_values_lie_in_an_interval_that_all_know(normalise: Raw, interval: tuple[float, float]) -> None:
    assert NormaliseConfig.model_validate(normalise).interval == interval


@pytest.mark.parametrize(
    "fields",
    [
        {"clusters": 100},
        {"clusters": 1},
        {"init": {"indices": [99, 0, 60, 59]}},
        {"init": {"method": "local"}},
        {"init": {"method": "random", "seed": 2**63 - 1}},
        {"drop_bits": 0},
        {"tol": 0},
        {"categories": {"a": ["x", 7, True]}, "multi_hot": {"b": 9}, "unseen": "ignore", "missing": "mean"},
        {"reveal": {"assignments": ["shop"], "centroids": ["payco", "shop"], "inertia": ["payco"], "columns": "all"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [vertical, horizontal])
def test_what_is_just_possible_is_read(tmp_path: Path, make: Callable[[], Raw], fields: Raw) -> None:
    raw = make()
    raw["kmeans"] |= fields
    assert load_config(written(tmp_path, raw)).kmeans


OWNER = "normalise.aggregate: only for the horizontal layout; a column has one owner here"
ORDER = "the lowest value must be below the highest"
AGGREGATE = "normalise.aggregate: only for minmax or zscore, and not beside ranges"
ENCODED = "the column 'a' is encoded twice: categories, one_hot and multi_hot share none"
COMMON_SCALE = "normalise: the horizontal layout needs ranges that all agree on, or aggregate: true"
VERTICAL: list[tuple[Raw, str]] = [
    ({"layout": None}, "layout: Field required"),
    ({"layout": "diagonal"}, "layout: Input should be 'vertical' or 'horizontal'"),
    ({"rows": None}, "rows: Field required"),
    ({"rows": {"payco": 60, "shop": 40}}, "rows: must be one number"),
    ({"features": None}, "features: Field required"),
    ({"features": 3}, "features: must be one number for each party"),
    ({"features": {"payco": 1}}, "features: must name exactly payco, shop"),
    ({"features": {"payco": 1, "shop": 1, "notary": 1}}, "features: must name exactly payco, shop"),
    ({"clusters": None}, "clusters: Field required"),
    ({"clusters": 0}, "clusters: Input should be greater than or equal to 1"),
    ({"clusters": 1025}, "clusters: Input should be less than or equal to 1024"),
    ({"clusters": 101}, "clusters: 101 clusters of 100 rows are not possible"),
    ({"max_iter": 0}, "max_iter: Input should be greater than or equal to 1"),
    ({"tol": -1}, "tol: Input should be greater than or equal to 0"),
    ({"tol": float("nan")}, "tol: Input should be a finite number"),
    ({"iterations_per_pipeline": 0}, "iterations_per_pipeline: Input should be greater than or equal to 1"),
    ({"iterations_per_pipeline": 101}, "iterations_per_pipeline: Input should be less than or equal to 100"),
    ({"drop_bits": -1}, "drop_bits: Input should be greater than or equal to 0"),
    ({"drop_bits": 33}, "drop_bits: Input should be less than or equal to 32"),
    ({"columns": ["a", "b", "a"]}, "columns: a column stands there twice"),
    ({"categories": {"a": []}}, "categories.a: there must be some, and none twice"),
    ({"categories": {"a": ["x", "y", "x"]}}, "categories.a: there must be some, and none twice"),
    ({"categories": {"a": [1, "1"]}}, "categories.a: there must be some, and none twice"),
    ({"categories": {"a": [1.5]}}, "categories.a.0: Input should be a valid string"),
    ({"categories": {"a": ["x"]}, "one_hot": ["a"]}, ENCODED),
    ({"one_hot": ["a"], "multi_hot": {"a": 3}}, ENCODED),
    ({"one_hot": ["a", "a"]}, ENCODED),
    ({"multi_hot": {"a": 0}}, "multi_hot.a: Input should be greater than or equal to 1"),
    ({"missing": "guess"}, "missing: Input should be 'error', 'zero' or 'mean'"),
    ({"unseen": "guess"}, "unseen: Input should be 'error' or 'ignore'"),
    ({"colour": "red"}, "colour: Extra inputs are not permitted"),
    ({"init": {"method": "guess"}}, "init.method: Input should be 'random', 'indices' or 'local'"),
    ({"init": {"seed": -1}}, "init.seed: Input should be greater than or equal to 0"),
    ({"init": {"seed": 2**63}}, f"init.seed: Input should be less than {2**63}"),
    ({"init": {"colour": 1}}, "init.colour: Extra inputs are not permitted"),
    ({"init": {"indices": [1, 2, 3, -1]}}, "init.indices.3: Input should be greater than or equal to 0"),
    ({"init": {"indices": [1, 2, 3, 3]}}, "init.indices: a row stands there twice"),
    ({"init": {"method": "local", "indices": [1, 2, 3, 4]}}, "init.indices: only for the method indices"),
    ({"init": {"method": "random", "indices": [1, 2, 3, 4]}}, "init.indices: only for the method indices"),
    ({"init": {"indices": []}}, "init.indices: 0 rows for 4 clusters"),
    ({"init": {"indices": [1, 2, 3, 4, 5]}}, "init.indices: 5 rows for 4 clusters"),
    ({"init": {"indices": [0, 1, 100, 2]}}, "init.indices: row 100 of 100; they count from 0"),
    ({"normalise": {"method": "log"}}, "normalise.method: Input should be 'minmax', 'zscore' or 'none'"),
    ({"normalise": {"colour": 1}}, "normalise.colour: Extra inputs are not permitted"),
    ({"normalise": {"aggregate": True}}, OWNER),
    ({"normalise": {"method": "none"}}, "normalise.bound: needed where nothing is normalised"),
    ({"normalise": {"method": "zscore", "bound": float("nan")}}, "normalise.bound: Input should be a finite number"),
    ({"normalise": {"bound": 2}}, "normalise.bound: minmax has the bound 1"),
    ({"normalise": {"method": "zscore", "ranges": {"a": [0, 1]}}}, "normalise.ranges: only for minmax"),
    ({"normalise": {"method": "none", "bound": 1, "ranges": {"a": [0, 1]}}}, "normalise.ranges: only for minmax"),
    ({"normalise": {"ranges": {"a": [0, 1], "b": [1, 1]}}}, f"normalise.ranges.b: {ORDER}"),
    ({"normalise": {"ranges": {"a": [float("nan"), 1]}}}, "normalise.ranges.a.0: Input should be a finite number"),
    ({"normalise": {"method": "none", "bound": float("inf")}}, "normalise.bound: Input should be a finite number"),
    ({"rows": "many"}, "kmeans.rows: Input should be a valid integer, unable to parse string as an integer"),
    ({"normalise": {"ranges": {"a": [0]}}}, "normalise.ranges.a.1: Field required"),
    ({"reveal": {"assignments": ["bank"]}}, "reveal.assignments: 'bank' is none of the parties"),
    ({"reveal": {"centroids": ["shop", "notary"]}}, "reveal.centroids: 'notary' is none of the parties"),
    ({"reveal": {"inertia": ["bank"]}}, "reveal.inertia: 'bank' is none of the parties"),
    ({"sparse": {"bank": {"nonzeros": 2}}}, "sparse: 'bank' is none of the parties"),
    ({"sparse": {"shop": {"nonzeros": -1}}}, "sparse.shop.nonzeros: Input should be greater than or equal to 0"),
    ({"products": {"bank": "he"}}, "products: 'bank' is none of the parties"),
    ({"products": "fast"}, "kmeans.products: Input should be 'auto', 'beaver' or 'he'"),
    ({"products": {"shop": "fast"}}, "kmeans.products.shop: Input should be 'auto', 'beaver' or 'he'"),
    ({"products": {"shop": {"update": 1}}}, "kmeans.products.shop.update: Input should be 'auto', 'beaver' or 'he'"),
    ({"cipher": {"bits": 1024}}, "cipher.bits: Input should be 2048 or 3072"),
    ({"cipher": {"scheme": "rot13"}}, "cipher.scheme: Input should be 'okamoto-uchiyama' or 'paillier'"),
    ({"reveal": {"columns": "none"}}, "reveal.columns: Input should be 'own' or 'all'"),
    ({"reveal": {"scores": ["payco"]}}, "reveal.scores: Extra inputs are not permitted"),
    ({"reveal": {"assignments": "payco"}}, "reveal.assignments: Input should be a valid tuple"),
]  # fmt: skip
HORIZONTAL: list[tuple[Raw, str]] = [
    ({"rows": 100}, "rows: must be one number for each party"),
    ({"rows": {"payco": 100}}, "rows: must name exactly payco, shop"),
    ({"rows": {"payco": 60, "bank": 40}}, "rows: must name exactly payco, shop"),
    ({"features": {"payco": 2, "shop": 3}}, "features: must be one number"),
    ({"clusters": 101}, "clusters: 101 clusters of 100 rows are not possible"),
    ({"init": {"indices": [0, 59, 60, 100]}}, "init.indices: row 100 of 100; they count from 0"),
    ({"one_hot": ["a"]}, "one_hot: the horizontal layout needs categories that all agree on, in categories"),
    ({"normalise": {}}, COMMON_SCALE),
    ({"normalise": {"method": "zscore"}}, COMMON_SCALE),
    ({"normalise": {"aggregate": True, "ranges": {"a": [0, 1]}}}, AGGREGATE),
    ({"normalise": {"aggregate": True, "method": "none", "bound": 1}}, AGGREGATE),
]  # fmt: skip
JOB_MISTAKES = [(vertical, *each) for each in VERTICAL] + [(horizontal, *each) for each in HORIZONTAL]


@pytest.mark.parametrize(
    ("make", "fields", "sentence"), JOB_MISTAKES, ids=[f"{make.__name__} {fields}" for make, fields, _ in JOB_MISTAKES]
)
def test_a_mistake_in_a_job_of_k_means_is_one_sentence_with_the_field(
    tmp_path: Path, make: Callable[[], Raw], fields: Raw, sentence: str
) -> None:
    raw = make()
    changed(raw["kmeans"], **fields)
    said = mistake(written(tmp_path, raw))
    assert said.startswith("FILE: kmeans")
    assert said.endswith(sentence)


def test_a_configuration_has_one_job(tmp_path: Path) -> None:
    said = mistake(written(tmp_path, changed(vertical(), sums=dict(JOB))))
    assert said == "FILE: kmeans: a configuration has one job, and there is sums, too"
    assert mistake(written(tmp_path, changed(vertical(), kmeans="yes"))).startswith("FILE: kmeans: Input should be")


def test_categories_are_text_whatever_yaml_makes_of_them(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, changed(vertical(), kmeans__categories={"a": ["x", 7, True]})))
    assert config.kmeans is not None
    assert config.kmeans.categories == {"a": ("x", "7", "true")}
