"""What the parties' data ask of their configurations: `inspect` says it in commands, `fill` sets it for a trial."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from veilmeans.pipelines.cli import main as cli
from veilmeans.pipelines.configure.config_advice import advise
from veilmeans.pipelines.configure.config_template import Example, write_examples
from veilmeans.pipelines.configure.edit_config import parse_changes, set_fields
from veilmeans.pipelines.configure.fill_from_data import fill_in
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import ConfigError, InputError, VeilmeansError

IDS = [f"c{i}" for i in range(6)]
PAYCO = {"id": IDS, "amount": [5, 1, 9, 2, 8, 7], "card": ["gift", "debit"] * 3}
SHOP = {"id": IDS, "visits": [1, 2, 3, 4, 5, 6]}
Columns = Mapping[str, Sequence[object]]


class Trial:
    """Configurations in a folder, and the data of both parties."""

    def __init__(self, folder: Path, **example: object) -> None:
        self.files = write_examples(folder, Example(clusters=2, **example))  # type: ignore[arg-type]
        self.payco, self.shop, self.dealer = self.files

    def fill(self, payco: Columns = PAYCO, shop: Columns = SHOP) -> str:
        for file, columns in ((self.payco, payco), (self.shop, shop)):
            lines = [columns.keys(), *zip(*columns.values(), strict=True)]
            (file.parent / "data.csv").write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
        return fill_in(self.files)

    def refused(self, payco: Columns = PAYCO, shop: Columns = SHOP) -> str:
        """The sentence, after which no file has changed."""
        before = [file.read_text() for file in self.files]
        with pytest.raises(VeilmeansError) as told:
            self.fill(payco, shop)
        assert [file.read_text() for file in self.files] == before
        return told.value.sentence


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


def said(text: str) -> list[list[str]]:
    """The `veilmeans` commands in a text, as a shell would read them."""
    found = re.findall(r"`veilmeans (set .*?)`|^  veilmeans (set .*)$", text, re.MULTILINE)
    return [shlex.split(inside or line) for inside, line in found]


def follow(text: str, which: int = 0) -> None:
    """Run a command that a text names."""
    result = CliRunner().invoke(cli.app, said(text)[which])
    assert result.exit_code == 0, result.output


def test_shapes_and_categories_are_set_at_everyone(trial: Trial) -> None:
    told = trial.fill()
    assert "payco: 6 rows, 3 columns (text as categories: card): amount, card=debit, card=gift" in told
    jobs = [load_config(file).required_kmeans for file in trial.files]
    assert [(job.rows, job.features) for job in jobs] == [(6, {"payco": 3, "shop": 1})] * 3
    assert [job.one_hot for job in jobs] == [("card",), (), ()]
    before = [file.read_text() for file in trial.files]
    trial.fill()
    assert [file.read_text() for file in trial.files] == before


def test_all_configurations_are_needed(trial: Trial) -> None:
    for files in (trial.files[:2], [trial.payco, trial.payco, trial.dealer]):
        with pytest.raises(ConfigError, match="give the configurations of payco, shop, dealer, each once"):
            fill_in(files)


def test_data_that_are_not_there_are_told(trial: Trial) -> None:
    with pytest.raises(InputError, match=r"the data file .*payco/data.csv does not exist; to use another file") as told:
        fill_in(trial.files)
    follow(told.value.sentence)
    (trial.payco.parent / "other.csv").write_text("id;amount\nc0;5\n")
    with pytest.raises(InputError, match=r"other.csv has one column only, 'id;amount': put commas between the values"):
        fill_in(trial.files)


@pytest.mark.parametrize(("which", "id_"), [(0, "customer"), (1, None)])
def test_without_the_id_column_the_commands_for_another_or_none_are_said(
    trial: Trial, which: int, id_: str | None
) -> None:
    first = {"customer": IDS} if id_ else {}
    payco, shop = (first | {name: each for name, each in all_.items() if name != "id"} for all_ in (PAYCO, SHOP))
    told = trial.refused(payco, shop)
    assert f"payco/data.csv has no column 'id'; it has {', '.join(payco)}." in told
    follow(told, which)
    follow(trial.refused(payco, shop), which)
    assert "payco: 6 rows, 3 columns" in trial.fill(payco, shop)
    assert [load_config(file).required_kmeans.id for file in (trial.payco, trial.shop)] == [id_, id_]


def test_an_id_at_one_party_only_is_refused(trial: Trial) -> None:
    set_fields({trial.shop: {"kmeans.id": None}})
    told = trial.refused(shop={"visits": SHOP["visits"]})
    assert "shop/data.csv has no id (kmeans.id) and" in told
    assert told.endswith("set it at both or at neither")


def test_other_rows_or_another_order_are_told(trial: Trial) -> None:
    fewer = {name: each[:-1] for name, each in SHOP.items()}
    assert "shop/data.csv has 5: both must be about the same rows in the same order" in trial.refused(shop=fewer)
    told = trial.refused(shop={**SHOP, "id": [*IDS[:2], *reversed(IDS[2:])]})
    assert "have different ids, or the same in another order: keep the rows that both know, and sort" in told
    assert not any(each in told for each in IDS)


@pytest.mark.parametrize(("which", "columns"), [(0, 1), (1, 7)])
def test_text_that_tells_rows_apart_is_left_out_or_kept_by_command(trial: Trial, which: int, columns: int) -> None:
    payco = {"id": IDS, "amount": PAYCO["amount"], "remark": list("uvwxyz")}
    told = trial.refused(payco)
    assert "column 'remark' is text with 6 different values in 6 rows; to leave it out: `veilmeans set" in told
    follow(told, which)
    assert f"payco: 6 rows, {columns} columns" in trial.fill(payco)


def test_dates_are_left_out_by_command(trial: Trial) -> None:
    payco = {**PAYCO, "day": ["2024-01-02"] * 6}
    told = trial.refused(payco)
    assert "column 'day' holds date32[day], and numbers or text are needed; to leave it out: `veilmeans set" in told
    follow(told)
    assert "payco: 6 rows, 3 columns" in trial.fill(payco)


def test_a_value_that_is_missing_is_told_with_what_may_stand_for_it(trial: Trial) -> None:
    shop = {**SHOP, "visits": [1, 2, "", 4, 5, 6]}
    told = trial.refused(shop=shop)
    assert "shop/data.csv, row 3, column 'visits': no value; fill it in, or let kmeans.missing (zero, mean)" in told
    set_fields({trial.shop: {"kmeans.missing": "mean"}})
    assert "shop: 6 rows, 1 columns" in trial.fill(shop=shop)


def test_a_label_is_pointed_out_and_left_out_by_command(trial: Trial) -> None:
    shop = {**SHOP, "label": [0, 1] * 3}
    told = trial.fill(shop=shop)
    assert "shop: 6 rows, 2 columns" in told
    assert "note: 'label' counts like every column; if it is a label, leave it out" in told
    follow(told)
    assert "kmeans.features.shop=1" in trial.fill(shop=shop)
    assert "note:" not in trial.fill(shop=shop)


def test_too_few_rows_are_told_with_a_command_for_fewer_clusters(trial: Trial) -> None:
    set_fields(dict.fromkeys(trial.files, parse_changes(["kmeans.clusters=7"])))
    told = trial.refused()
    assert "6 rows are too few for 7 clusters; for fewer clusters: `veilmeans set" in told
    follow(told)
    assert "kmeans.rows=6" in trial.fill()


def test_the_horizontal_layout_needs_the_same_columns_and_named_categories(tmp_path: Path) -> None:
    trial = Trial(tmp_path, layout="horizontal")
    told = trial.refused(PAYCO, PAYCO)
    assert "column 'card' is text, and with the horizontal layout everyone must name the same categories" in told
    for file in trial.files[:2]:
        set_fields({file: {"kmeans.categories.card": ["debit", "gift"]}})
    other = {name: PAYCO[name] for name in ("id", "card", "amount")}
    assert "with the horizontal layout both need the same, in the same order" in trial.refused(PAYCO, other)
    fewer = {name: each[:4] for name, each in PAYCO.items()}
    assert trial.fill(PAYCO, fewer).endswith("kmeans.rows.payco=6 kmeans.features=3 kmeans.rows.shop=4")


def test_inspect_ends_with_the_commands_for_this_party_and_for_all(trial: Trial) -> None:
    trial.fill()
    set_fields({trial.payco: {"kmeans.rows": 10000, "kmeans.features.payco": 4, "kmeans.one_hot": []}})
    result = CliRunner().invoke(cli.app, ["inspect", "--config", str(trial.payco)])
    assert result.exit_code == 0, result.output
    own, common = said(result.output)
    assert own == ["set", "--config", str(trial.payco), "kmeans.one_hot=[card]"]
    assert common == ["set", "--config", str(trial.payco), "kmeans.rows=6", "kmeans.features.payco=3"]
    assert "run at each of payco, shop, dealer, with its own configuration" in result.output
    follow(result.output, 0)
    follow(result.output, 1)
    assert advise(load_config(trial.payco), trial.payco).text() == (
        "The configuration fits these data. The others' must say the same: kmeans.rows=6 kmeans.features.payco=3"
    )
