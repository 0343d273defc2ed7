"""`veilmeans set`: fields of a configuration changed in place, or not at all."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from veilmeans.pipelines.configure.config_template import Example, config_text
from veilmeans.pipelines.configure.edit_config import as_yaml, parse_changes, replaced_value, set_command, set_fields
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
    assert load_config(file).required_kmeans.id == "customer"


def test_fields_that_are_not_there_are_added(file: Path) -> None:
    lines = file.read_text().splitlines()
    changes = {"kmeans.one_hot": ["a b", "c, d"], "engine.workers": 2, "kmeans.init.indices": [0, 1, 2, 3, 4]}
    set_fields({file: changes})
    config = load_config(file)
    assert config.required_kmeans.one_hot == ("a b", "c, d")
    assert config.engine.workers == 2
    assert config.required_kmeans.init.indices == (0, 1, 2, 3, 4)
    assert [line for line in lines if line not in file.read_text().splitlines()] == [
        "  init: {method: indices, seed: 1} # random, indices or local"
    ]


def test_an_empty_value_is_filled(file: Path) -> None:
    file.write_text(file.read_text().replace("  id: id\n", "  id: # none yet\n"))
    set_fields({file: {"kmeans.id": "row"}})
    assert load_config(file).required_kmeans.id == "row"
    assert "# none yet" in file.read_text()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("kmeans.rows=3", "kmeans.clusters: 5 clusters of 3 rows are not possible"),
        ("kmeans.colour=3", "kmeans.colour: Extra inputs are not permitted"),
        ("kmeans.features.bank=3", "kmeans.features: must name exactly payco, shop"),
        ("kmeans.rows.payco=3", "kmeans.rows: must be one number"),
        ("kmeans.id=3", "kmeans.id is written in"),
        ("kmeans.columns=[a", "the value of kmeans.columns is no YAML: '[a'"),
        ("kmeans.rows", "'kmeans.rows' is no change: write FIELD=VALUE"),
        ("kmeans..rows=3", "'kmeans..rows=3' is no change"),
    ],
)
def test_what_would_be_wrong_is_refused_and_nothing_is_written(file: Path, change: str, sentence: str) -> None:
    if change == "kmeans.id=3":  # a reference to what stands elsewhere
        text = file.read_text().replace("party: payco", "party: &who payco").replace("id: id", "id: *who")
        file.write_text(text)
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1 # one\nb: 2\n", "a: 9 # one\nb: 2\n"),
        ("a:\n- x\n- y\n# after\nb: 2\n", "a: 9\n# after\nb: 2\n"),
        ("a:\n  x: 1\n  y:\n    - 2 # two\nb: 2\n", "a: 9 # two\nb: 2\n"),
        ("a:\nb: 2\n", "a: 9\nb: 2\n"),
        ("{b: 2, a: [1,\n 2]}", "{b: 2, a: 9}"),
        ("# top\nb: 2\n", "# top\na: 9\nb: 2\n"),
        ("{b: 2}", "{a: 9, b: 2}"),
        ("a: 'it''s' # that\n", "a: 9 # that\n"),
        ("a: &x [1]\nb: 3\n", "a: 9\nb: 3\n"),
    ],
)
def test_a_value_in_any_style(text: str, expected: str) -> None:
    found = replaced_value(text, "a", 9)
    assert found == expected
    assert yaml.safe_load(found)["a"] == 9


def test_values_below_others() -> None:
    text = "k:\n  # own\n  r: {c: [x], i: []} # who\n  z: 1\nl: 2\n"
    for field, value in {"k.r.c": [], "k.p": {"m": 1}, "l": 3}.items():
        text = replaced_value(text, field, value)
    assert text == "k:\n  # own\n  p: {m: 1}\n  r: {c: [], i: []} # who\n  z: 1\nl: 3\n"


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
