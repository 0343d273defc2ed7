"""A configuration: read, checked once, frozen; a mistake is refused with the file and the field."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from support.config_text import Raw, changed, files, gateway, refusal, without_dealer, written
from support.parties import make_configs, write_config
from veilmeans.pipelines.session.kmeans_from_config import store_iterations
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.message import MessageKey


@pytest.mark.parametrize("make", [gateway, files])
def test_a_configuration_is_read(tmp_path: Path, make: Callable[[], Raw]) -> None:
    config = load_config(written(tmp_path, make()))
    assert (config.party, config.me.index, config.me.names) == ("payco", 0, ("payco", "shop"))
    assert config.exchange.kind == make.__name__


def test_paths_are_relative_to_the_file_unless_they_have_a_scheme(tmp_path: Path) -> None:
    raw = changed(files(), peers__shop__outbox="gs://shop/outbox", scratch="hdfs://here/scratch", key="/etc/payco.key")
    config = load_config(written(tmp_path, raw))
    here = tmp_path.resolve()
    assert config.certificate == here / "payco.crt"
    assert config.key == Path("/etc/payco.key")
    assert config.storage == here / "storage"
    assert config.run_folder.path == here / "storage" / "runs" / "run-1"
    assert config.peers["shop"].certificate == here / "shop.crt"
    assert config.peers["shop"].outbox == "gs://shop/outbox"
    assert config.exchange.outbox == str(here / "outbox")
    assert config.peers["notary"].outbox == str(here / "../notary/outbox")
    assert config.scratch == "hdfs://here/scratch"
    assert config.required_kmeans.data == str(here / "data.csv")


def test_only_path_fields_are_made_absolute(tmp_path: Path) -> None:
    """A party may have the name of a path field."""
    raw = changed(gateway(), parties=["payco", "data"], peers__shop=None, kmeans__products={"data": "he"})
    raw["peers"]["data"] = {"certificate": "data.crt", "address": "127.0.0.1:4001"}
    raw["kmeans"]["features"] = {"payco": 2, "data": 3}
    assert load_config(written(tmp_path, raw)).required_kmeans.products == {"data": "he"}


def test_a_configuration_is_frozen(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, gateway()))
    for section, field in (
        (config, "run"),
        (config.exchange, "kind"),
        (config.beam, "workers"),
        (config.kmeans, "clusters"),
        (config.triples, "runs"),
        (config.peers["shop"], "address"),
    ):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(section, field, "x")


def test_a_configuration_comes_back_from_its_pickle_and_from_its_file(tmp_path: Path) -> None:
    for config in (load_config(written(tmp_path, files())), *make_configs(tmp_path, 3, dealer="notary").values()):
        assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301
        assert load_config(write_config(config, tmp_path / "again.yaml")) == config


def as_dealer() -> Raw:
    raw = changed(gateway(), party="notary", peers__notary=None)
    raw["peers"]["payco"] = {"certificate": "payco.crt", "address": "127.0.0.1:4000"}
    return raw


def test_a_dealer_is_not_one_of_the_parties(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, as_dealer()))
    assert config.party == "notary"
    with pytest.raises(ConfigError, match="notary"):
        _ = config.kmeans_with_data


def test_a_party_without_data_is_refused_where_data_are_needed(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, changed(gateway(), kmeans__data=None)))
    with pytest.raises(ConfigError, match=r"kmeans\.data"):
        _ = config.kmeans_with_data
    config = load_config(written(tmp_path, changed(gateway(), kmeans=None)))
    with pytest.raises(ConfigError, match="`kmeans:`"):
        _ = config.required_kmeans


def test_a_store_serves_one_run_of_the_job_by_default(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, gateway()))
    assert config.required_triples.model_dump() == {
        "store": "october", "runs": 1, "iterations": None, "rows": None, "provider": None, "ledger": None,
    }  # fmt: skip
    assert store_iterations(config) == 10
    assert store_iterations(load_config(written(tmp_path, changed(gateway(), kmeans__max_iter=3)))) == 3
    assert store_iterations(load_config(written(tmp_path, changed(gateway(), triples__iterations=4)))) == 4
    assert config.store_folder.path == config.storage / "triples" / "october"
    assert config.model_copy(update={"run": "other"}).store_folder == config.store_folder


@pytest.mark.parametrize(
    ("raw", "asked", "provider"),
    [(gateway, None, "dealer"), (gateway, "dealer", "dealer")]
    + [(without_dealer, asked, asked or "ot") for asked in (None, "ot", "iknp")],
)
def test_a_store_is_made_by_the_dealer_if_there_is_one_and_else_by_the_parties(
    tmp_path: Path, raw: Callable[[], Raw], asked: str | None, provider: str
) -> None:
    fields = {"triples__provider": asked} if asked else {}
    assert load_config(written(tmp_path, changed(raw(), **fields))).provider == provider


def test_a_configuration_without_a_store_is_refused_where_one_is_needed(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, changed(gateway(), triples=None)))
    assert config.triples is None
    for needed in (lambda: config.required_triples, lambda: config.store_folder, config.offline):
        with pytest.raises(ConfigError, match=r"payco.*`triples:`"):
            needed()


def test_the_dealer_is_a_peer_while_a_store_is_made_and_not_in_a_run(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, gateway()))
    online, offline = config.online(), config.offline()
    assert set(config.peers) == set(offline.peers) == {"shop", "notary"}
    assert set(online.peers) == {"shop"}
    assert online.model_copy(update={"peers": config.peers}) == config
    assert offline.run == "store-october"
    assert offline.model_copy(update={"run": config.run}) == config
    assert offline.run_folder.path == config.storage / "runs" / "store-october"


def test_the_longest_name_of_a_store_fits_into_message_keys(tmp_path: Path) -> None:
    offline = load_config(written(tmp_path, changed(gateway(), triples__store="x" * 74))).offline()
    key = MessageKey(Address(offline.run, 0, "offline.0", 0), "notary", "payco")
    assert MessageKey.parse(key.to_json()) == key


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.yaml")
    assert "Is a directory" in refusal(tmp_path)
    assert refusal(written(tmp_path, "party: payco\nrun: [1, 2\nx: y\n")).endswith("line 3")
    file = tmp_path / "binary.yaml"
    file.write_bytes(b"party: \xff\xfe")
    assert refusal(file) == "FILE is not YAML"


def test_a_relative_path_is_refused_with_the_folder_that_it_is_relative_to() -> None:
    with pytest.raises(ConfigError, match=str(Path.cwd())):
        load_config(Path("none.yaml"))


@pytest.mark.parametrize("text", ["", "just text", "- a\n- b\n", "5"])
def test_a_file_that_is_not_a_mapping_is_refused(tmp_path: Path, text: str) -> None:
    assert refusal(written(tmp_path, text)).startswith("FILE must be a mapping")


REFUSED: list[tuple[Raw, str]] = [
    ({"party": None}, "party"),
    ({"party": ".x"}, "party"),
    ({"party": "bank"}, "party"),
    ({"peers__shop__certificate": None}, "peers.shop.certificate"),
    ({"colour": "red"}, "colour"),
    ({"exchange__colour": "red"}, "exchange.colour"),
    ({"kmeans__colour": "red"}, "kmeans.colour"),
    ({"triples__colour": "red"}, "triples.colour"),
    ({"engine": {"workers": 2}}, "engine"),
    ({"run": 5}, "run"),
    ({"run": "../x"}, "run"),
    ({"run": "x" * 81}, "run"),
    ({"run": "store-october"}, "run"),
    ({"run": "open-spring.reveal"}, "run"),
    ({"parties": "payco"}, "parties"),
    ({"parties": ["payco"]}, "parties"),
    ({"parties": ["payco", "a/b"]}, "parties"),
    ({"parties": ["payco", "shop", "payco"]}, "parties"),
    ({"dealer": "sh op"}, "dealer"),
    ({"dealer": "shop"}, "dealer"),
    ({"dealer": None}, "peers"),
    ({"peers__shop": None}, "peers"),
    ({"peers__bank": {"certificate": "x", "address": "a:1"}}, "peers"),
    ({"peers__shop__address": None}, "peers.shop.address"),
    ({"peers__shop__address": "here:65536"}, "peers.shop.address"),
    ({"listen": None}, "listen"),
    ({"listen": "4000"}, "listen"),
    ({"listen": ":4000"}, "listen"),
    ({"listen": "here:"}, "listen"),
    ({"listen": "here:x"}, "listen"),
    ({"exchange__kind": "pigeon"}, "exchange.kind"),
    ({"exchange__timeout_s": 0}, "exchange.timeout_s"),
    ({"exchange__max_message_mb": "many"}, "exchange.max_message_mb"),
    ({"exchange__shape": {"rate_mbps": 0, "round_trip_ms": 1}}, "exchange.shape.rate_mbps"),
    ({"beam__workers": 0}, "beam.workers"),
    ({"beam__worker_type": "horses"}, "beam.worker_type"),
    ({"beam__rows_per_shard": 0}, "beam.rows_per_shard"),
    ({"beam__values_per_column_shard": 0}, "beam.values_per_column_shard"),
    ({"beam__state": "gas"}, "beam.state"),
    ({"beam__rounds": "whole"}, "beam.rounds"),
    ({"beam__attempts": 11}, "beam.attempts"),
    ({"gateway": "none"}, "gateway"),
    ({"triples__store": None}, "triples.store"),
    ({"triples__store": "../x"}, "triples.store"),
    ({"triples__store": "x" * 75}, "triples.store"),
    ({"triples__runs": 0}, "triples.runs"),
    ({"triples__iterations": 0}, "triples.iterations"),
    ({"triples__iterations": 1.5}, "triples.iterations"),
    ({"triples": "yes"}, "triples"),
    ({"triples__provider": "notary"}, "triples.provider"),
    ({"triples__provider": "ot"}, "triples.provider"),
    ({"triples__provider": "iknp"}, "triples.provider"),
    ({"dealer": None, "peers__notary": None, "triples__provider": "dealer"}, "triples.provider"),
    ({"key": 7}, "key"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=map(str, range(len(REFUSED))))
def test_a_wrong_field_is_refused_by_name(tmp_path: Path, fields: Raw, named: str) -> None:
    assert refusal(written(tmp_path, changed(gateway(), **fields))).startswith(f"FILE: {named}: ")


@pytest.mark.parametrize("field", ["peers.notary.outbox", "exchange.outbox"])
def test_an_exchange_by_files_needs_outboxes(tmp_path: Path, field: str) -> None:
    raw = changed(files(), **{field.replace(".", "__"): None})
    assert refusal(written(tmp_path, raw)).startswith(f"FILE: {field}: ")


@pytest.mark.parametrize(
    ("beam", "root"),
    [
        ({}, "memory/payco"),
        ({"workers": 2}, "memory/payco"),
        ({"workers": 2, "worker_type": "processes"}, "SCRATCH"),
        ({"runner": "FlinkRunner"}, "SCRATCH"),
        ({"options": ["--direct_running_mode=multi_processing"]}, "SCRATCH"),
        ({"state": "scratch"}, "SCRATCH"),
        ({"state": "value", "runner": "FlinkRunner"}, "value"),
        ({"state": "memory"}, "memory/payco"),
    ],
)
def test_states_are_kept_in_memory_only_if_all_workers_share_it(tmp_path: Path, beam: Raw, root: str) -> None:
    config = load_config(written(tmp_path, changed(gateway(), beam=beam)))
    assert config.scratch_root == root.replace("SCRATCH", str(config.storage / "scratch"))


def test_states_of_many_rows_are_kept_in_scratch(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, changed(gateway(), kmeans__rows=(1 << 21) + 1)))
    assert config.scratch_root == str(config.storage / "scratch")


def test_flags_are_added_to_the_options_and_a_runner_replaces_the_configured_one(tmp_path: Path) -> None:
    config: JobConfig = load_config(written(tmp_path, changed(gateway(), beam={"options": ["--a=1"]})))
    assert config.with_flags([]) is config
    flagged = config.with_flags(["--runner", "FlinkRunner", "--parallelism=2", "--streaming"])
    assert flagged.beam.runner == "FlinkRunner"
    assert flagged.beam.options == ("--a=1", "--parallelism=2", "--streaming")
    assert flagged.model_copy(update={"beam": config.beam}) == config
    assert config.with_flags(["--runner=PrismRunner"]).beam.runner == "PrismRunner"
