"""docs/config.md: generated from the schema, with a description and an agreement for every field."""

from pathlib import Path

from docs.config_page import page


def test_the_page_is_generated_from_the_schema() -> None:
    assert (Path(__file__).parents[2] / "docs/config.md").read_text() == page()


def test_every_field_is_described() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) > 70
    for row in rows:
        name, kind, default, agreed, meaning = row.strip("| ").split(" | ")
        assert all((name, kind, default, meaning)), row
        assert agreed in ("all", "all, if horizontal", "no") or "fields below" in kind, row
        assert kind != "value", row
        assert meaning != "see below" or "fields below" in kind, row


def test_bounds_and_agreements_are_shown() -> None:
    assert "| `iterations` | integer, ≥ 1 | none | all |" in page()
    assert "| `rows_per_shard` | integer, ≥ 1, ≤ 16,777,216 | `65536` | all |" in page()
    assert "| `ranges` | name → list | none | all, if horizontal |" in page()
    assert "| `seed` | path | needed | no |" in page()
