"""Compare a party's data with its configuration, and print the commands that make the configuration fit.

For this party only: names of columns are printed, values are not, and nothing is sent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from veilmeans.io.sources.scan import Scan
from veilmeans.io.sources.source_files import find_files
from veilmeans.io.sources.sparse_matrices import is_matrix
from veilmeans.io.sources.tables import table_types
from veilmeans.pipelines.configure.edit_config import set_command
from veilmeans.pipelines.session.own_data import scan_own_data
from veilmeans.pipelines.session.trained_model import TrainedModel, load_model
from veilmeans.schemas.column_names import list_briefly
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import InputError
from veilmeans.schemas.kmeans_config import KMeansConfig

AGREEMENTS = "agreements"
"""The folder beside a configuration whose terms were agreed by files: `veilmeans invite`, `veilmeans propose`."""
_LABEL_NAMES = {"y", "label", "target", "class"}
_NUMBERS = ("int", "uint", "float", "double", "halffloat", "bool", "decimal", "null")
_TEXT = ("string", "large_string", "string_view", "dictionary")


@dataclass(frozen=True)
class Advice:
    """The changes that a party's data require in the configurations."""

    file: Path
    config: JobConfig
    """The configuration with text columns as categories."""
    own_changes: dict[str, Any]
    """Changes of this party's configuration only."""
    scan: Scan
    model: TrainedModel | None
    """The trained model, if the configuration is that of a prediction."""
    label: str | None
    """A column that looks like a label."""

    @property
    def shared_changes(self) -> dict[str, int]:
        """The number of our rows and columns, which every member's configuration must have."""
        job, party = self.config.kmeans_with_data, self.config.party
        rows, features = self.scan.rows, len(self.scan.columns)
        if job.layout == "horizontal":
            return {f"kmeans.rows.{party}": rows, "kmeans.features": features}
        counted = {} if self.config.unaligned else {"kmeans.rows": rows}
        return {**counted, f"kmeans.features.{party}": features}

    def with_declared_categories(self) -> "Advice":
        """The same, with the categories of text declared: the common rows, which nobody knows yet, may have fewer."""
        text = self.config.required_kmeans.one_hot
        if not text:
            return self
        found = {field.name: list(field.values) for field in self.scan.fields if field.name in text}
        declared = {**self.config.required_kmeans.categories, **found}
        return replace(self, own_changes={"kmeans.one_hot": [], "kmeans.categories": declared})

    @property
    def fits(self) -> bool:
        """True if our own configuration needs no change."""
        same_rows = self.config.unaligned or self.config.declared_shape[0] == self.scan.rows
        return not self.own_changes and same_rows and self.config.declared_features == len(self.scan.columns)

    def label_note(self) -> str:
        """The command that leaves out a column that looks like a label."""
        if self.label is None:
            return ""
        note = f"note: {self.label!r} is used like every column; if it is a label, exclude it, then run this again"
        return f"{note}:\n  {_exclude_command(self.file, _columns(self.config), [self.label])}"

    def text(self) -> str:
        """The next commands, with a sentence before each."""
        members = ", ".join(self.config.members)
        lines = [self.label_note()] if self.label else []
        if self.fits:
            same = " ".join(f"{field}={value}" for field, value in self.shared_changes.items())
            return "\n".join([*lines, f"The configuration fits these data. The others' must have the same: {same}"])
        if self.own_changes:
            lines.append(f"To use text as categories, run here:\n  {set_command([self.file], self.own_changes)}")
        if (self.file.parent / AGREEMENTS).exists():
            lines.append("Propose the size of the data to the others:")
            return "\n".join([*lines, f"  {set_command([self.file], self.shared_changes, 'propose')}"])
        lines.append(f"Send this command to the others; {members} each run it with their own configuration:")
        return "\n".join([*lines, f"  {set_command([self.file], self.shared_changes)}"])


def advise(config: JobConfig, file: Path) -> Advice:
    """Scan the data of the configuration in `file`; raise an InputError with a command for data that cannot be used."""
    job, model = config.kmeans_with_data, load_model(config)
    source = _first_file(job.data or "", file)
    if is_matrix(source):
        return Advice(file, config, {}, scan_own_data(config, model), model, None)
    kinds = table_types(source)
    _check_id(job, source, file, kinds)
    names = _columns(config)
    encoded = {*job.categories, *job.one_hot, *job.multi_hot}
    plain = {name: kinds[name] for name in names if name in kinds and name not in encoded}
    unusable = [name for name, kind in plain.items() if not kind.startswith((*_NUMBERS, *_TEXT))]  # such as dates
    if unusable:
        raise InputError(
            f"{source}, column {unusable[0]!r} has the type {plain[unusable[0]]}, and numbers or text are needed; to "
            f"exclude it: `{_exclude_command(file, names, unusable)}`"
        )
    text = tuple(name for name, kind in plain.items() if kind.startswith(_TEXT))
    if text and job.layout == "horizontal":
        raise InputError(
            f"{source}, column {text[0]!r} is text, and with the horizontal layout everyone must name the same "
            f"categories; with all its values instead of a and b: "
            f"`{set_command([file], {f'kmeans.categories.{text[0]}': ['a', 'b']})}`"
        )
    one_hot = (*job.one_hot, *text)
    usable = config.model_copy(update={"kmeans": job.model_copy(update={"one_hot": one_hot})})
    scan = scan_own_data(usable, model)
    _check_categories(scan, file, names, text)
    own = {"kmeans.one_hot": list(one_hot)} if text else {}
    label = next((name for name in plain if name.lower() in _LABEL_NAMES), None)
    found = Advice(file, usable, own, scan, model, label)
    return found.with_declared_categories() if config.align else found


def _exclude_command(file: Path, names: Sequence[str], excluded: Iterable[str]) -> str:
    """Return the command that uses all columns except some."""
    return set_command([file], {"kmeans.columns": [name for name in names if name not in excluded]})


def _first_file(data: str, file: Path) -> str:
    try:
        return find_files(data)[0]
    except InputError as error:
        other = set_command([file], {"kmeans.data": "other.csv"})
        raise InputError(f"{error.sentence}; to use another file (path from {file.parent}): `{other}`") from None


def _columns(config: JobConfig) -> tuple[str, ...]:
    """The configured columns of a table, or all except id and label."""
    job = config.kmeans_with_data
    kinds = table_types(find_files(job.data or "")[0])
    return job.columns or tuple(name for name in kinds if name not in (job.id, job.label))


def _check_id(job: KMeansConfig, source: str, file: Path, kinds: dict[str, str]) -> None:
    if job.id is None or job.id in kinds:
        return
    first = next(iter(kinds))
    if len(kinds) == 1 and set(";\t|") & set(first):
        raise InputError(f"{source} has only one column, {first!r}: separate the values by commas")
    aligned = " and all parties' rows are in the same order, at every party" if job.layout == "vertical" else ""
    raise InputError(
        f"{source} has no column {job.id!r}; it has {list_briefly(list(kinds))}. If one of them identifies the rows: "
        f"`{set_command([file], {'kmeans.id': first})}` (here the first). If none does{aligned}: "
        f"`{set_command([file], {'kmeans.id': None})}`"
    )


def _check_categories(scan: Scan, file: Path, names: Sequence[str], text: Sequence[str]) -> None:
    """Refuse text that differs in most rows: it is a name or a remark, not a category."""
    many = {field.name: field.width for field in scan.fields if field.name in text and 2 * field.width > scan.rows}
    for name, width in many.items():
        raise InputError(
            f"{scan.source}, column {name!r} is text with {width:,} different values in {scan.rows:,} rows; to "
            f"exclude it: `{_exclude_command(file, names, many)}`; to use it as categories anyway: "
            f"`{set_command([file], {'kmeans.one_hot': list(text)})}`"
        )
