"""`veilmeans config set`: fields of a configuration are changed in place, or not at all."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from veilmeans.pipelines.configure.config_template import TemplateValues, config_text
from veilmeans.pipelines.configure.edit_config import (
    as_yaml,
    changed_text,
    copy_config,
    parse_changes,
    set_command,
    set_fields,
)
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(config_text("payco", TemplateValues()))
    return path


def test_only_the_named_values_change(file: Path) -> None:
    before = file.read_text()
    set_fields({file: parse_changes(["kmeans.rows=150", "kmeans.features.payco=7", "run=second", "kmeans.id="])})
    expected = (
        before.replace("rows: 10000", "rows: 150")
        .replace("{payco: 4, shop: 4}", "{payco: 7, shop: 4}")
        .replace("run: first # a", "run: second # a")
        .replace("  id: id\n", "  id:\n")
    )
    assert file.read_text() == expected
    set_fields({file: {"kmeans.id": "customer"}})
    assert load_config(file).required_kmeans.id == "customer"


def test_fields_that_are_not_there_are_added(file: Path) -> None:
    lines = file.read_text().splitlines()
    changes = {"kmeans.one_hot": ["a b", "c, d"], "beam.workers": 2, "kmeans.init.indices": [0, 1, 2, 3, 4]}
    set_fields({file: changes})
    config = load_config(file)
    assert config.required_kmeans.one_hot == ("a b", "c, d")
    assert config.beam.workers == 2
    assert config.required_kmeans.init.indices == (0, 1, 2, 3, 4)
    assert [line.split(":")[0] for line in lines if line not in file.read_text().splitlines()] == ["  init"]


def test_a_copy_has_the_changes_and_the_comments(file: Path) -> None:
    before, other = file.read_text(), file.with_name("other.yaml")
    copy_config(file, other, {"run": "other", "kmeans.tol": 0.5})
    assert file.read_text() == before
    assert other.read_text().count("#") == before.count("#")
    assert (load_config(other).run, load_config(other).required_kmeans.tol) == ("other", 0.5)
    with pytest.raises(ConfigError, match=r"other\.yaml: kmeans\.clusters"):
        copy_config(file, other, {"kmeans.clusters": 0})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("kmeans.rows=3", "kmeans.clusters"),
        ("kmeans.colour=3", "kmeans.colour"),
        ("kmeans.features.bank=3", "kmeans.features"),
        ("kmeans.rows.payco=3", "kmeans.rows"),
        ("kmeans.columns=[a", "'[a'"),
        ("kmeans.rows", "'kmeans.rows'"),
        ("kmeans..rows=3", "'kmeans..rows=3'"),
    ],
)
def test_a_wrong_change_is_refused_and_nothing_is_written(file: Path, change: str, named: str) -> None:
    other, before = file.with_name("other.yaml"), file.read_text()
    other.write_text(before)
    with pytest.raises(ConfigError, match=re.escape(named)):
        set_fields(dict.fromkeys([other, file], parse_changes(["run=second", change])))
    assert file.read_text() == other.read_text() == before


def test_one_file_that_would_be_wrong_keeps_all_as_they_are(file: Path) -> None:
    other, before = file.with_name("other.yaml"), file.read_text()
    other.write_text(before.replace("clusters: 5", "clusters: 50"))
    with pytest.raises(ConfigError, match=r"other\.yaml: kmeans\.clusters"):
        set_fields(dict.fromkeys([file, other], parse_changes(["kmeans.rows=20"])))
    assert file.read_text() == before


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any YAML be a configuration."""
    monkeypatch.setattr("veilmeans.pipelines.configure.edit_config.parse_config", lambda *_: None)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1 # one\nb: 2\n", "a: 9 # one\nb: 2\n"),
        ("a:\n- x\n- y\n# after\nb: 2\n", "a: 9\n# after\nb: 2\n"),
        ("a:\n  x: 1\n\n# about b\nb: 2\n", "a: 9\n\n# about b\nb: 2\n"),
        ("a: # none yet\nb: 2\n", "a: 9 # none yet\nb: 2\n"),
        ("{b: 2, a: [1,\n 2]}", "{b: 2, a: 9}\n"),
        ("# top\nb: 2\n", "# top\na: 9\nb: 2\n"),
        ("{b: 2}", "{a: 9, b: 2}\n"),
        ("b: 'it''s' # that\na: 1\n", "b: 'it''s' # that\na: 9\n"),
        ("b: no\na: 1\n", "b: no\na: 9\n"),
    ],
)
def test_a_value_is_replaced_in_any_style(text: str, expected: str) -> None:
    assert changed_text(text, {"a": 9}, Path("x.yaml")) == expected


@pytest.mark.usefixtures("unchecked")
def test_values_in_sections_are_replaced_and_added() -> None:
    text = "k:\n  # own\n  r: {c: [x], i: []}\n  z: 1\nl: 2\n"
    changed = changed_text(text, {"k.r.c": [], "k.p": {"m": "no"}, "l": 3}, Path("x.yaml"))
    assert changed == "k:\n  # own\n  p: {m: 'no'}\n  r: {c: [], i: []}\n  z: 1\nl: 3\n"


@pytest.mark.usefixtures("unchecked")
def test_a_name_with_a_dot_is_found() -> None:
    text = "peers: {pay.co: {address: x}, pay: 1}\n"
    assert changed_text(text, {"peers.pay.co.address": "y"}, Path("x.yaml")) == text.replace("x", "y")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("text", "field"), [("a: 1\na: 2\n", "a"), ("b: &x {c: 1}\na: *x\n", "a.c")])
def test_a_field_that_stands_twice_or_is_shared_by_an_anchor_is_refused(text: str, field: str) -> None:
    with pytest.raises(ConfigError, match=r"x\.yaml"):
        changed_text(text, {field: 9}, Path("x.yaml"))


def test_a_field_is_set_once() -> None:
    with pytest.raises(ConfigError, match="run"):
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
    *_, config, columns, rows = shlex.split(command)
    assert config == "a b/config.yaml"
    assert parse_changes([columns, rows]) == {"kmeans.columns": ["it's", "$x"], "kmeans.rows": 3}
    assert command.startswith("veilmeans config set --config ")
