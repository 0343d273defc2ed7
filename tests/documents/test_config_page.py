"""The page about the configuration is the schema's own, and says something about every field."""

from pathlib import Path

from docs.config_page import page


def test_the_page_is_what_the_schema_says() -> None:
    assert (Path(__file__).parents[2] / "docs/config.md").read_text() == page()


def test_every_field_is_described() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) > 70
    for row in rows:
        name, kind, default, meaning = row.strip("| ").split(" | ")
        assert all((name, kind, default, meaning)), row
        assert kind != "value", row
        assert meaning != "see below" or "fields below" in kind, row


def test_bounds_inside_an_optional_type_are_told() -> None:
    assert "| `iterations` | whole number, ≥ 1 | none |" in page()
    assert "| `rows_per_shard` | whole number, ≥ 1, ≤ 16,777,216 | `65536` |" in page()
