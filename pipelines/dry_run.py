"""`--dry-run` of the commands that make files: what each would do. Its mistakes are told as the command itself would.

Nothing is written but in a temporary folder, and nothing is sent.
"""

import os
import tempfile
from pathlib import Path

from veilmeans.crypto.certificates import fingerprint
from veilmeans.io.connect import check_port, load_identity, load_peer_certificates
from veilmeans.pipelines.demo import DEALER, FEATURES, check_demo
from veilmeans.pipelines.init import Example, check_free, write_examples, write_trial
from veilmeans.pipelines.keys import check_keys, key_files
from veilmeans.pipelines.prepare import prepare_data
from veilmeans.pipelines.units import size
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, StorageError


def dry_keys(name: str, folder: Path, days: int) -> str:
    check_keys(name, folder)
    check_writable(folder)
    key, seed, certificate = key_files(name, folder)
    return (
        f"would write {key} and {seed}, secrets (mode 0600) that stay here\n"
        f"would write {certificate}, valid for {days:,} days, to be sent to every peer"
    )


def dry_init(folder: Path, example: Example, trial: bool) -> str:
    """All is written aside, because it must also be read without a mistake."""
    check_free(folder, example)
    with tempfile.TemporaryDirectory() as aside:
        try:
            (write_trial if trial else write_examples)(Path(aside), example)
        except ConfigError as error:
            raise ConfigError(error.sentence.replace(aside, str(folder))) from None
        files = sorted(file.relative_to(aside) for file in Path(aside).rglob("*") if file.is_file())
    check_writable(folder)
    return "\n".join(f"would write {folder / file}" for file in files)


def dry_gateway(config: JobConfig) -> str:
    """The port is bound for a moment, to see that it is free."""
    load_identity(config)
    certificates = load_peer_certificates(config)
    check_port(config.listen or "")
    check_writable(config.storage / "inbox")
    peers = [f"  from {name}, whose certificate is {fingerprint(pem)}" for name, pem in certificates.items()]
    return "\n".join(
        [
            f"would listen on {config.listen} as {config.party} until it is interrupted, mutual TLS only",
            f"would store messages of up to {config.exchange.max_message_mb:,} MB in {config.storage / 'inbox'}:",
            *peers,
        ]
    )


def dry_prepare(config: JobConfig) -> str:
    """Both passes over the data, into a folder that is removed."""
    with tempfile.TemporaryDirectory() as aside:
        found = prepare_data(config, Path(aside))
        files = [file for file in Path(aside).rglob("*") if file.is_file()]
        written = sum(file.stat().st_size for file in files)
    check_writable(config.storage)
    return f"{found}\nwould write {size(written)} in {len(files):,} files below {config.storage / 'prepared'}"


def dry_demo(folder: Path, rows: int, exchange: str) -> str:
    check_demo(folder, exchange)
    check_writable(folder)
    members = (*FEATURES, DEALER)
    removed = [f"would remove the earlier demo in {folder}"] if folder.exists() else []
    return "\n".join(
        [
            *removed,
            f"would write configuration, keys and data of {', '.join(members)} below {folder}: {rows:,} made-up "
            f"transactions × {sum(FEATURES.values())} features",
            f"would start {len(members)} × `veilmeans offline`, then {len(FEATURES)} × `veilmeans train`, on this "
            f"machine only (127.0.0.1, {len(members)} free ports); exchange by {exchange}",
        ]
    )


def check_writable(folder: Path) -> None:
    """Refuse a folder that could not be made or written to."""
    place = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not place.is_dir():
        raise StorageError(f"{folder} cannot be written: {place} is a file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(f"{folder} cannot be written: Permission denied")
