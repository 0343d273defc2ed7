"""What a party's data ask of its configuration: changes that `veilmeans set` makes, and commands to copy.

It is for the party's own eyes: names of columns are shown, values are not, and nothing is sent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veilmeans.io.sources.scan import Scan
from veilmeans.io.sources.source_files import find_files
from veilmeans.io.sources.sparse_matrices import is_matrix
from veilmeans.io.sources.tables import types_of
from veilmeans.pipelines.configure.edit_config import set_command
from veilmeans.pipelines.session.own_data import scan_own_data
from veilmeans.schemas.column_names import brief
from veilmeans.schemas.config import JobConfig, declared_shape, kmeans_with_data
from veilmeans.schemas.errors import InputError
from veilmeans.schemas.kmeans_config import KMeansConfig

_LABELS = {"y", "label", "target", "class"}
_NUMBERS = ("int", "uint", "float", "double", "halffloat", "bool", "decimal", "null")
_TEXT = ("string", "large_string", "string_view", "dictionary")


@dataclass(frozen=True)
class Advice:
    """How this party's data would be used, and what its configuration must say for it."""

    file: Path
    config: JobConfig
    """With text columns as categories."""
    own: dict[str, Any]
    """Changes of our own configuration."""
    scan: Scan
    label: str | None

    @property
    def common(self) -> dict[str, int]:
        """What everyone's configuration must say of our data."""
        job, party = kmeans_with_data(self.config), self.config.party
        rows, features = ("kmeans.rows", f"kmeans.features.{party}")
        if job.layout == "horizontal":
            rows, features = f"kmeans.rows.{party}", "kmeans.features"
        return {rows: self.scan.rows, features: len(self.scan.columns)}

    @property
    def fits(self) -> bool:
        """Whether our own configuration says all that already."""
        said = declared_shape(self.config, kmeans_with_data(self.config))
        return not self.own and said == (self.scan.rows, len(self.scan.columns))

    def label_note(self) -> str:
        """What to do about a column that looks like a label."""
        if self.label is None:
            return ""
        without = leave_out(self.file, _columns(self.config), [self.label])
        what = f"note: {self.label!r} counts like every column; if it is a label, leave it out, then run this again"
        return f"{what}:\n  {without}"

    def text(self) -> str:
        """What to do next, in commands."""
        members = ", ".join((*self.config.parties, *([self.config.dealer] if self.config.dealer else [])))
        lines = [self.label_note()]
        if self.fits:
            lines.append(
                f"The configuration fits these data. The others' must say the same: "
                f"{' '.join(f'{field}={value}' for field, value in self.common.items())}"
            )
        if self.own:
            lines.append(f"To use text as categories, run here:\n  {set_command([self.file], self.own)}")
        if not self.fits:
            lines.append(
                f"Tell the others, and run at each of {members}, with its own configuration:\n"
                f"  {set_command([self.file], self.common)}"
            )
        return "\n".join(filter(None, lines))


def advise(config: JobConfig, file: Path, storage: Path | None = None) -> Advice:
    """Look at the data of the configuration in `file`; what cannot be used is an InputError with a command.

    `storage`: where what was seen is kept instead of our own.
    """
    job = kmeans_with_data(config)
    source = _first_file(job.data or "", file)
    if is_matrix(source):
        return Advice(file, config, {}, scan_own_data(config, storage), None)
    kinds = types_of(source)
    _check_id(job, source, file, kinds)
    names = _columns(config)
    plain = {name: kinds[name] for name in names if name in kinds and name not in _encoded(config)}
    _check_kinds(source, file, names, plain)
    text = tuple(name for name, kind in plain.items() if kind.startswith(_TEXT))
    if text and job.layout == "horizontal":
        raise InputError(
            f"{source}, column {text[0]!r} is text, and with the horizontal layout everyone must name the same "
            f"categories; with all its values instead of a and b: "
            f"`{set_command([file], {f'kmeans.categories.{text[0]}': ['a', 'b']})}`"
        )
    one_hot = (*job.one_hot, *text)
    usable = config.model_copy(update={"kmeans": job.model_copy(update={"one_hot": one_hot})})
    scan = scan_own_data(usable, storage)
    _check_categories(scan, file, names, text)
    own = {"kmeans.one_hot": list(one_hot)} if text else {}
    return Advice(file, usable, own, scan, next((name for name in plain if name.lower() in _LABELS), None))


def leave_out(file: Path, names: Sequence[str], without: Iterable[str]) -> str:
    """The command that uses all columns but some."""
    return set_command([file], {"kmeans.columns": [name for name in names if name not in without]})


def _first_file(data: str, file: Path) -> str:
    try:
        return find_files(data)[0]
    except InputError as error:
        other = set_command([file], {"kmeans.data": "other.csv"})
        raise InputError(f"{error.sentence}; to use another file, named from {file.parent}: `{other}`") from None


def _columns(config: JobConfig) -> tuple[str, ...]:
    """The columns of a table that are used, as far as they are there."""
    job = kmeans_with_data(config)
    return job.columns or tuple(name for name in types_of(find_files(job.data or "")[0]) if name != job.id)


def _encoded(config: JobConfig) -> set[str]:
    job = kmeans_with_data(config)
    return {*job.categories, *job.one_hot, *job.multi_hot}


def _check_id(job: KMeansConfig, source: str, file: Path, kinds: dict[str, str]) -> None:
    if job.id is None or job.id in kinds:
        return
    first = next(iter(kinds))
    if len(kinds) == 1 and set(";\t|") & set(first):
        raise InputError(f"{source} has one column only, {first!r}: put commas between the values")
    aligned = " and everyone's rows are in the same order, at every party" if job.layout == "vertical" else ""
    raise InputError(
        f"{source} has no column {job.id!r}; it has {brief(list(kinds))}. If one of them names the rows: "
        f"`{set_command([file], {'kmeans.id': first})}` (here the first). If none does{aligned}: "
        f"`{set_command([file], {'kmeans.id': None})}`"
    )


def _check_kinds(source: str, file: Path, names: Sequence[str], plain: dict[str, str]) -> None:
    """Dates and the like are neither numbers nor categories."""
    strange = [name for name, kind in plain.items() if not kind.startswith((*_NUMBERS, *_TEXT))]
    if strange:
        raise InputError(
            f"{source}, column {strange[0]!r} holds {plain[strange[0]]}, and numbers or text are needed; to leave it "
            f"out: `{leave_out(file, names, strange)}`"
        )


def _check_categories(scan: Scan, file: Path, names: Sequence[str], text: Sequence[str]) -> None:
    """Text that differs in most rows is a name or a remark."""
    many = {field.name: field.width for field in scan.fields if field.name in text and 2 * field.width > scan.rows}
    for name, width in many.items():
        raise InputError(
            f"{scan.source}, column {name!r} is text with {width:,} different values in {scan.rows:,} rows; to leave "
            f"it out: `{leave_out(file, names, many)}`; to use it as categories all the same: "
            f"`{set_command([file], {'kmeans.one_hot': list(text)})}`"
        )
