"""`veilmeans set`: fields of a configuration changed in place, or not at all."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from veilmeans.pipelines.init import Example, config_text
from veilmeans.pipelines.set_fields import as_yaml, parse_changes, set_command, set_fields
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(config_text("payco", Example()))
    return path


def test_only_the_named_values_change(file: Path) -> None:
    before = file.read_text()
    set_fields({file: parse_changes(["kmeans.rows=150", "kmeans.features.payco=7", "run=second", "kmeans.id="])})
    after = file.read_text()
    expected = (
        before.replace("rows: 10000", "rows: 150")
        .replace("{payco: 4, shop: 4}", "{payco: 7, shop: 4}")
        .replace("run: first # a", "run: second # a")
        .replace("  id: id\n", "  id: null\n")
    )
    assert after == expected
    set_fields({file: {"kmeans.id": "customer"}})
    assert load_config(file).needed_kmeans.id == "customer"


def test_fields_that_are_not_there_are_added(file: Path) -> None:
    lines = file.read_text().splitlines()
    changes = {"kmeans.one_hot": ["a b", "c, d"], "engine.workers": 2, "kmeans.init.indices": [0, 1, 2, 3, 4]}
    set_fields({file: changes})
    config = load_config(file)
    assert config.needed_kmeans.one_hot == ("a b", "c, d")
    assert config.engine.workers == 2
    assert config.needed_kmeans.init.indices == (0, 1, 2, 3, 4)
    assert [line for line in lines if line not in file.read_text().splitlines()] == [
        "  init: {method: indices, seed: 1} # random, indices or local"
    ]


def test_an_empty_value_is_filled(file: Path) -> None:
    file.write_text(file.read_text().replace("  id: id\n", "  id: # none yet\n"))
    set_fields({file: {"kmeans.id": "row"}})
    assert load_config(file).needed_kmeans.id == "row"
    assert "# none yet" in file.read_text()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("kmeans.rows=3", "kmeans.clusters: 5 clusters of 3 rows are not possible"),
        ("kmeans.colour=3", "kmeans.colour: Extra inputs are not permitted"),
        ("kmeans.features.bank=3", "kmeans.features: must name exactly payco, shop"),
        ("kmeans.rows.payco=3", "kmeans.rows: must be one number"),
        ("kmeans.reveal={}", "kmeans.reveal is written in"),
        ("kmeans.columns=[a", "the value of kmeans.columns is no YAML: '[a'"),
        ("kmeans.rows", "'kmeans.rows' is no change: write FIELD=VALUE"),
        ("kmeans..rows=3", "'kmeans..rows=3' is no change"),
    ],
)
def test_what_would_be_wrong_is_refused_and_nothing_is_written(file: Path, change: str, sentence: str) -> None:
    if change == "kmeans.reveal={}":
        file.write_text(file.read_text() + "sums:\n")  # something follows the block
    other, before = file.with_name("other.yaml"), file.read_text()
    other.write_text(before)
    with pytest.raises(ConfigError) as told:
        set_fields(dict.fromkeys([other, file], parse_changes(["run=second", change])))
    assert sentence in told.value.sentence
    assert file.read_text() == other.read_text() == before


def test_one_file_that_would_be_wrong_keeps_all_as_they_are(file: Path) -> None:
    other, before = file.with_name("other.yaml"), file.read_text()
    other.write_text(before.replace("clusters: 5", "clusters: 50"))
    with pytest.raises(ConfigError, match=r"other.yaml: kmeans.clusters: 50 clusters of 20 rows"):
        set_fields(dict.fromkeys([file, other], parse_changes(["kmeans.rows=20"])))
    assert file.read_text() == before


def test_a_field_is_set_once() -> None:
    with pytest.raises(ConfigError, match="run is set twice"):
        parse_changes(["run=a", "run=b"])


VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text(), max_size=3)


@given(VALUES)
@settings(max_examples=50)
@example("a\nb")
@example(["a\n", "no", "1"])
@example("\x85")
def test_a_value_is_one_line_that_reads_as_itself(value: Any) -> None:
    text = as_yaml(value)
    assert yaml.safe_load(text) == value
    assert "\n" not in text


def test_a_command_can_be_copied_whatever_the_names_are() -> None:
    command = set_command([Path("a b/config.yaml")], {"kmeans.columns": ["it's", "$x"], "kmeans.rows": 3})
    assert command == ("veilmeans set --config 'a b/config.yaml' 'kmeans.columns=[it'\"'\"'s, $x]' kmeans.rows=3")
