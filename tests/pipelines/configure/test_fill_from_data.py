"""Configurations follow the data: `inspect` prints commands, and `config fill` sets the fields of a trial."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from veilmeans.pipelines.cli import main as cli
from veilmeans.pipelines.configure.config_advice import advise
from veilmeans.pipelines.configure.config_template import TemplateValues, write_configs
from veilmeans.pipelines.configure.edit_config import parse_changes, set_fields
from veilmeans.pipelines.configure.fill_from_data import fill_configs
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import ConfigError, InputError, VeilmeansError

IDS = [f"c{i}" for i in range(6)]
PAYCO = {"id": IDS, "amount": [5, 1, 9, 2, 8, 7], "card": ["gift", "debit"] * 3}
SHOP = {"id": IDS, "visits": [1, 2, 3, 4, 5, 6]}
Columns = Mapping[str, Sequence[object]]


class Trial:
    """Configurations in a folder, and the data of both parties."""

    def __init__(self, folder: Path, **values: object) -> None:
        self.files = write_configs(folder, TemplateValues(clusters=2, dealer="dealer", **values))  # type: ignore[arg-type]
        self.payco, self.shop, self.dealer = self.files

    def fill(self, payco: Columns = PAYCO, shop: Columns = SHOP) -> str:
        for file, columns in ((self.payco, payco), (self.shop, shop)):
            lines = [columns.keys(), *zip(*columns.values(), strict=True)]
            (file.parent / "data.csv").write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
        return fill_configs(self.files)

    def refused(self, payco: Columns = PAYCO, shop: Columns = SHOP) -> str:
        """Fill in data that are refused; the sentence. No file may change."""
        before = [file.read_text() for file in self.files]
        with pytest.raises(VeilmeansError) as raised:
            self.fill(payco, shop)
        assert [file.read_text() for file in self.files] == before
        return raised.value.sentence


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


def commands_in(text: str) -> list[list[str]]:
    """The `veilmeans` commands in a text, split as by a shell."""
    found = re.findall(r"`veilmeans (config set .*?)`|^  veilmeans (config set .*)$", text, re.MULTILINE)
    return [shlex.split(inside or line) for inside, line in found]


def follow(text: str, which: int = 0) -> None:
    """Run one of the commands in a text."""
    result = CliRunner().invoke(cli.app, commands_in(text)[which])
    assert result.exit_code == 0, result.output


def test_shapes_and_categories_are_set_in_every_configuration(trial: Trial) -> None:
    output = trial.fill()
    assert "payco: 6 rows, 3 columns (text as categories: card): amount, card=debit, card=gift" in output
    jobs = [load_config(file).required_kmeans for file in trial.files]
    assert [(job.rows, job.features) for job in jobs] == [(6, {"payco": 3, "shop": 1})] * 3
    assert [job.one_hot for job in jobs] == [("card",), (), ()]
    before = [file.read_text() for file in trial.files]
    trial.fill()
    assert [file.read_text() for file in trial.files] == before


def test_all_configurations_are_needed(trial: Trial) -> None:
    for files in (trial.files[:2], [trial.payco, trial.payco, trial.dealer]):
        with pytest.raises(ConfigError, match="payco, shop, dealer"):
            fill_configs(files)


def test_missing_data_and_other_separators_are_refused(trial: Trial) -> None:
    with pytest.raises(InputError, match=r"payco/data\.csv") as raised:
        fill_configs(trial.files)
    follow(raised.value.sentence)
    (trial.payco.parent / "other.csv").write_text("id;amount\nc0;5\n")
    with pytest.raises(InputError, match=r"other\.csv.*'id;amount'"):
        fill_configs(trial.files)


@pytest.mark.parametrize(("which", "id_"), [(0, "customer"), (1, None)])
def test_without_the_id_column_commands_for_another_or_none_are_printed(
    trial: Trial, which: int, id_: str | None
) -> None:
    first = {"customer": IDS} if id_ else {}
    payco, shop = (first | {name: each for name, each in all_.items() if name != "id"} for all_ in (PAYCO, SHOP))
    sentence = trial.refused(payco, shop)
    assert re.search(rf"payco/data\.csv .*'id'.*{', '.join(payco)}", sentence)
    follow(sentence, which)
    follow(trial.refused(payco, shop), which)
    assert "payco: 6 rows, 3 columns" in trial.fill(payco, shop)
    assert [load_config(file).required_kmeans.id for file in (trial.payco, trial.shop)] == [id_, id_]


def test_an_id_at_one_party_only_is_refused(trial: Trial) -> None:
    set_fields({trial.shop: {"kmeans.id": None}})
    sentence = trial.refused(shop={"visits": SHOP["visits"]})
    assert re.search(r"shop/data\.csv .*kmeans\.id.*payco/data\.csv", sentence)


def test_other_rows_or_another_order_are_aligned_by_their_ids(trial: Trial) -> None:
    fewer = {name: each[:-1] for name, each in SHOP.items()}
    for shop in (fewer, {**SHOP, "id": [*IDS[:2], *reversed(IDS[2:])]}):
        summary = trial.fill(shop=shop)
        assert "rows or their order differ: `align` and `train` find those that all have" in summary
        assert not any(each in summary for each in IDS)
        for file in (trial.payco, trial.shop):
            config = load_config(file)
            assert config.align is not None
            assert config.required_kmeans.rows is None
        job = load_config(trial.payco).required_kmeans
        assert (job.categories, job.one_hot) == ({"card": ("debit", "gift")}, ())  # common rows may lack one


def test_other_rows_without_ids_are_refused(trial: Trial) -> None:
    set_fields({file: {"kmeans.id": None} for file in (trial.payco, trial.shop)})
    payco, shop = ({name: each for name, each in table.items() if name != "id"} for table in (PAYCO, SHOP))
    sentence = trial.refused(payco, {name: each[:-1] for name, each in shop.items()})
    assert re.search(r"payco/data\.csv has 6 .*shop/data\.csv has 5.*kmeans\.id", sentence)


@pytest.mark.parametrize(("which", "columns"), [(0, 1), (1, 7)])
def test_text_that_differs_in_every_row_is_excluded_or_kept_by_command(trial: Trial, which: int, columns: int) -> None:
    payco = {"id": IDS, "amount": PAYCO["amount"], "remark": list("uvwxyz")}
    sentence = trial.refused(payco)
    assert "'remark'" in sentence
    follow(sentence, which)
    assert f"payco: 6 rows, {columns} columns" in trial.fill(payco)


def test_dates_are_excluded_by_command(trial: Trial) -> None:
    payco = {**PAYCO, "day": ["2024-01-02"] * 6}
    sentence = trial.refused(payco)
    assert re.search(r"'day' .*date32\[day\]", sentence)
    follow(sentence)
    assert "payco: 6 rows, 3 columns" in trial.fill(payco)


def test_a_missing_value_is_refused_with_the_field_that_fills_it_in(trial: Trial) -> None:
    shop = {**SHOP, "visits": [1, 2, "", 4, 5, 6]}
    sentence = trial.refused(shop=shop)
    assert re.search(r"shop/data\.csv.* 3, column 'visits'.*kmeans\.missing", sentence)
    set_fields({trial.shop: {"kmeans.missing": "mean"}})
    assert "shop: 6 rows, 1 columns" in trial.fill(shop=shop)


def test_a_label_is_pointed_out_and_excluded_by_command(trial: Trial) -> None:
    shop = {**SHOP, "label": [0, 1] * 3}
    output = trial.fill(shop=shop)
    assert "shop: 6 rows, 2 columns" in output
    assert "note: 'label'" in output
    follow(output)
    assert "kmeans.features.shop=1" in trial.fill(shop=shop)
    assert "note:" not in trial.fill(shop=shop)


def test_too_few_rows_are_refused_with_a_command_for_fewer_clusters(trial: Trial) -> None:
    set_fields(dict.fromkeys(trial.files, parse_changes(["kmeans.clusters=7"])))
    sentence = trial.refused()
    assert re.search("6 rows .*7 clusters", sentence)
    follow(sentence)
    assert "kmeans.rows=6" in trial.fill()


def test_the_horizontal_layout_needs_the_same_columns_and_named_categories(tmp_path: Path) -> None:
    trial = Trial(tmp_path, layout="horizontal")
    assert "'card'" in trial.refused(PAYCO, PAYCO)
    for file in trial.files[:2]:
        set_fields({file: {"kmeans.categories.card": ["debit", "gift"]}})
    other = {name: PAYCO[name] for name in ("id", "card", "amount")}
    assert re.search(r"payco/data\.csv .*shop/data\.csv .*horizontal", trial.refused(PAYCO, other))
    fewer = {name: each[:4] for name, each in PAYCO.items()}
    assert trial.fill(PAYCO, fewer).endswith("kmeans.rows.payco=6 kmeans.features=3 kmeans.rows.shop=4")


def test_inspect_ends_with_the_commands_for_this_party_and_for_all(trial: Trial) -> None:
    trial.fill()
    set_fields({trial.payco: {"kmeans.rows": 10000, "kmeans.features.payco": 4, "kmeans.one_hot": []}})
    result = CliRunner().invoke(cli.app, ["inspect", "--config", str(trial.payco)])
    assert result.exit_code == 0, result.output
    own, shared = commands_in(result.output)
    assert own == ["config", "set", "--config", str(trial.payco), "kmeans.one_hot=[card]"]
    assert shared == ["config", "set", "--config", str(trial.payco), "kmeans.rows=6", "kmeans.features.payco=3"]
    assert "payco, shop, dealer" in result.output
    follow(result.output, 0)
    follow(result.output, 1)
    advice = advise(load_config(trial.payco), trial.payco)
    assert advice.fits
    assert advice.text().endswith("kmeans.rows=6 kmeans.features.payco=3")
