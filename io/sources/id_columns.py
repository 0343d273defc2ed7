"""The ids of a party's rows for an alignment: read, normalised by one rule, checked, and hashed.

The rule: an integer is written in decimal digits; text is brought to Unicode's form NFC and trimmed of white space at
both ends and, where case does not count, is written in lower case. What is empty then is missing. So 7, "7" and " 7 "
are the same id, and 7 and "07" are not.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veilmeans.crypto.ot.psi.id_hash import IdHashes, hash_texts
from veilmeans.io.sources.source_files import Source, find_files, format_of
from veilmeans.io.sources.tables import TableBatch, table_batches
from veilmeans.io.storage.id_records import IdRecordWriter, all_parts, read_records, replace_records
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.errors import InputError

_PARTS = 64
_TEXT = (pa.types.is_string, pa.types.is_large_string)


@dataclass(frozen=True)
class IdRules:
    """The rules by which ids are compared, and rows with the same id, or without one, are left out."""

    lower_case: bool = False
    keep_first: bool = False
    drop_missing: bool = False


@dataclass(frozen=True)
class ScannedIds:
    """A party's ids: the rows of the source, the distinct ids, a digest of all, and the folder of their hashes."""

    rows: int
    ids: int
    digest: str
    folder: Path


def scan_ids(name: str, id_column: str, rules: IdRules, folder: Path) -> ScannedIds:
    """Read the ids of a source, and write their hashes below `folder` in parts; refuse what the rules do not allow."""
    source = Source(name, find_files(name))
    if format_of(source.files[0]) in ("npz", "svmlight"):
        raise InputError(f"{source.files[0]} holds no ids, so its rows cannot be aligned: give a table with kmeans.id")
    writer, digest, rows, missing, first = IdRecordWriter(folder, _PARTS), hashlib.sha256(), 0, 0, ""
    for batch in table_batches(source, (), id_column):
        hashes, present = _hash_batch(batch, id_column, rules.lower_case)
        numbers = rows + np.flatnonzero(present)
        if not present.all() and not missing:
            first = batch.place(int((~present).argmax()), id_column)
        missing += len(present) - len(numbers)
        digest.update(hashes.data)
        writer.add(hashes, numbers, (hashes[:, 3] >> np.uint64(58)).astype(np.int64))
        rows += len(present)
    writer.close()
    if missing and not rules.drop_missing:
        raise InputError(
            f"{first}: the id is missing, here and in all in {missing:,} of {rows:,} rows; fill them in, or set "
            "align.missing to drop"
        )
    repeated, place = _drop_repeated(folder)
    if repeated and not rules.keep_first:
        raise InputError(
            f"{source}: {repeated:,} of {rows:,} rows repeat the id of an earlier row, row {place:,} the first; keep "
            "one of each, or set align.duplicates to first"
        )
    return ScannedIds(rows, rows - missing - repeated, digest.hexdigest(), folder)


def normalised_text(column: pa.Array, lower_case: bool) -> pa.Array:
    """Ids as text by the rule above; null where there is none."""
    text = column.cast(pa.large_string())
    text = pc.utf8_trim_whitespace(pc.utf8_normalize(text, form="NFC"))
    text = pc.utf8_normalize(pc.utf8_lower(text), form="NFC") if lower_case else text
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.large_string()), text)


def _hash_batch(batch: TableBatch, id_column: str, lower_case: bool) -> tuple[IdHashes, Array]:
    """The hashes of the ids that are there, and which are."""
    column = batch.rows.column(id_column)
    if not (pa.types.is_integer(column.type) or any(is_text(column.type) for is_text in _TEXT)):
        if not pa.types.is_null(column.type):
            raise InputError(f"{batch.file}, column {id_column!r} holds {column.type}: an id is text or an integer")
        column = column.cast(pa.large_string())
    text = normalised_text(column, lower_case)
    present = text.is_valid().to_numpy(zero_copy_only=False)
    encoded = pa.concat_arrays([text.drop_null().cast(pa.large_binary())])
    ends = np.frombuffer(encoded.buffers()[1], np.int64)[encoded.offset : encoded.offset + len(encoded) + 1]
    data = encoded.buffers()[2]
    octets = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return hash_texts(octets, ends if len(encoded) else np.zeros(1, np.int64)), present


def _drop_repeated(folder: Path) -> tuple[int, int]:
    """Keep the first row of each id; return how many others there were, and the first of them, counted from 1."""
    repeated, place = 0, 0
    for number in all_parts(folder):
        hashes, rows = read_records(folder, number)
        order = np.lexsort((rows, *hashes.T))
        hashes, rows = hashes[order], rows[order]
        again = np.zeros(len(rows), np.bool_)
        again[1:] = (hashes[1:] == hashes[:-1]).all(axis=1)
        if again.any():
            repeated += int(again.sum())
            least = int(rows[again].min()) + 1
            place = min(place, least) if place else least
            replace_records(folder, number, hashes[~again], rows[~again])
    return repeated, place
