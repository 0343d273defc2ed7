"""A party's files in its shared place, from its own host: move its triple store there, and read its final shares.

python -m support.cluster.shared_shares move CONFIG           the store, but for its claims
python -m support.cluster.shared_shares token CONFIG FILE     the workers' token
python -m support.cluster.shared_shares digest CONFIG FILE    SHA-256 of every array of every checkpoint, as JSON
"""

import hashlib
import json
import sys
from pathlib import Path

from support.run_results import assignment_shares, checkpoints_of, read_checkpoint
from veilmeans.io.exchange.connections import attach_shared, load_identity
from veilmeans.io.files.party_files import files_at
from veilmeans.io.files.secret_files import read_secret
from veilmeans.io.storage.run_token import make_token
from veilmeans.schemas.config import JobConfig, load_config


def move_store(config: JobConfig) -> None:
    """Move a triple store that was made locally."""
    for file in config.store_folder.path.rglob("*"):
        if file.is_file():
            files_at(file).write(file, [file.read_bytes()])
            file.unlink()


def digests(config: JobConfig) -> dict[str, str]:
    """The SHA-256 of every array that a party keeps of its run: all checkpoints, and the last assignments."""
    found = {}
    for iterations in range(checkpoints_of(config).newest() + 1):
        found |= {f"{iterations}/{name}": array for name, array in read_checkpoint(config, iterations).items()}
    found |= {f"rows/{shard}": array for shard, array in enumerate(assignment_shares(config))}
    return {name: hashlib.sha256(f"{a.dtype}{a.shape}".encode() + a.tobytes()).hexdigest() for name, a in found.items()}


def main() -> None:
    config = load_config(Path(sys.argv[2]))
    if config.shared is not None:
        attach_shared(config)
    if sys.argv[1] == "move":
        move_store(config)
    elif sys.argv[1] == "token":
        token = make_token(read_secret(config.seed), config, load_identity(config).certificate)
        Path(sys.argv[3]).write_text(token.encode())
    else:
        Path(sys.argv[3]).write_text(json.dumps(digests(config)))


if __name__ == "__main__":
    main()
