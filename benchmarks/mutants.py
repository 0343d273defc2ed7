"""Plant faults in a copy of the code, one at a time, and see whether the tests named for each find it.

A fault is found if its tests fail; an error while tests are collected is none. Before, the same tests must pass on the
unchanged copy. A fault whose text is not in its file exactly once is an error: the code has changed, and so must the
fault.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PASSED, FAILED = 0, 1  # pytest's exit codes; all others mean that tests did not run
_NOT_COPIED = shutil.ignore_patterns(".venv", ".git", ".cache", "build", "__pycache__", "*.egg-info", ".*_cache")


@dataclass(frozen=True)
class Fault:
    """Text of a file, what replaces it, and the arguments of pytest that should find it."""

    name: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]

    def plant(self, folder: Path) -> str:
        """Change the file in a copy of the code; return what it was."""
        path = folder / self.file
        before = path.read_text()
        if before.count(self.text) != 1:
            raise SystemExit(f"{self.name}: {self.file} has the text {before.count(self.text)} times, not once")
        path.write_text(before.replace(self.text, self.replacement))
        return before


FAULTS = (
    Fault(
        "mask dropped: a product's operand is sent as it is",
        "transforms/primitives/multiply.py",
        '"e": x - randomness.correlated(kind, "a")',
        '"e": x - 0 * randomness.correlated(kind, "a")',
        ("tests/transforms/rounds/test_transcripts.py",),
    ),
    Fault(
        "mask reused: one for all labels of an address",
        "crypto/prg.py",
        "_prefix(address) + label.encode()",
        "_prefix(address)",
        ("tests/crypto/test_prg.py",),
    ),
    Fault(
        "mask asked for twice in one round",
        "transforms/rounds/addressed_randomness.py",
        "        if label in self._claimed:\n",
        "        if False:\n",
        ("tests/transforms/rounds/test_addressed_randomness.py",),
    ),
    Fault(
        "mask too short: without σ",
        "crypto/he/packing.py",
        "return -(-(self.bound + self.sigma) // 8)",
        "return -(-self.bound // 8)",
        ("tests/crypto/he/test_packing.py",),
    ),
    Fault(
        "growth of a ciphertext's randomness left out",
        "crypto/he/product_parameters.py",
        "return shifted + self.magnitude + _log2(self.terms) + self.sigma",
        "return 0 * shifted",
        ("tests/crypto/he/test_product_parameters.py", "tests/transforms/offline/test_blinding.py"),
    ),
    Fault(
        "tweak σ of the tree hash left out",
        "crypto/ot/half_trees.py",
        "    sigma(nodes, shuffled)\n",
        "    shuffled[:] = nodes\n",
        ("tests/crypto/ot/test_silent_ot.py",),
    ),
    Fault(
        "flooding left out",
        "crypto/lattice/matrix_triple.py",
        'random = sampling.words(seed, f"flood {j}", 2 * shape.results)',
        'random = 0 * sampling.words(seed, f"flood {j}", 2 * shape.results)',
        ("tests/crypto/lattice/test_response_privacy.py",),
    ),
    Fault(
        "tag of a file not compared",
        "io/files/tagged_files.py",
        "if not hmac.compare_digest(",
        "if False and not hmac.compare_digest(",
        ("tests/io/files/test_tagged_files.py",),
    ),
    Fault(
        "digest of a message not compared",
        "schemas/message.py",
        "if hashlib.sha256(payload).digest() != self.digest:",
        "if False:",
        ("tests/schemas/test_message.py",),
    ),
    Fault(
        "claim of a store's number not checked",
        "io/storage/triple_store.py",
        "if number < self.next_number() or number >= self.manifest.runs:",
        "if number >= self.manifest.runs:",
        ("tests/io/storage/test_triple_store.py",),
    ),
    Fault(
        "nonce left out of a session's secrets",
        "crypto/ot/ot_session.py",
        'b"%b%d>%d %b%b" % (self.nonce, self.sender',
        'b"%d>%d %b%b" % (self.sender',
        ("tests/crypto/ot/test_iknp.py", "tests/transforms/offline/test_ot_places.py"),
    ),
    Fault(
        "comparison off by one",
        "transforms/primitives/compare.py",
        "x.dtype.type(self.offset % 2",
        "x.dtype.type((self.offset + 1) % 2",
        ("tests/transforms/primitives/test_compare.py",),
    ),
    Fault(
        "reveal policy ignored",
        "transforms/openings/reveal_policy.py",
        "return index in named and int(",
        "return int(",
        ("tests/pipelines/test_reveal.py",),
    ),
    Fault(
        "commitment not compared",
        "transforms/primitives/share_and_open.py",
        "if not np.array_equal(_commitment(",
        "if False and not np.array_equal(_commitment(",
        ("tests/transforms/primitives/test_share_and_open.py",),
    ),
    Fault(
        "nonce of a commitment left out",
        "transforms/primitives/share_and_open.py",
        'b"veilmeans commitment " + nonce.astype("<u8").tobytes()',
        'b"veilmeans commitment "',
        ("tests/transforms/primitives/test_share_and_open.py",),
    ),
    Fault(
        "echoes not compared",
        "transforms/auditing/echoes.py",
        "        if here == there:\n",
        "        if True:\n",
        ("tests/transforms/auditing/test_echoes.py",),
    ),
    Fault(
        "signature of a transcript not checked",
        "transforms/auditing/statements.py",
        "if not is_signed_by(",
        "if False and not is_signed_by(",
        ("tests/transforms/auditing/test_statements.py",),
    ),
    Fault(
        "opened assignments not checked",
        "transforms/kmeans/open_results.py",
        "if not np.all(hot.sum(axis=0) == 1):",
        "if False:",
        ("tests/transforms/kmeans/test_open_results.py",),
    ),
    Fault(
        "nonce of an encrypted file without its content",
        "crypto/pairwise_encryption.py",
        " + context + hashlib.sha256(plain).digest()",
        " + context",
        ("tests/crypto/test_pairwise_encryption.py",),
    ),
    Fault(
        "replayed message not compared",
        "transforms/auditing/replay.py",
        "elif (line.size, line.digest) !=",
        "elif False and (line.size, line.digest) !=",
        ("tests/pipelines/reporting/test_audit.py",),
    ),
)


def run_tests(folder: Path, tests: Sequence[str]) -> int:
    """Run tests in a copy of the code; return pytest's exit code."""
    paths = os.pathsep.join([str(folder / "src"), str(folder / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False).returncode


def check_copy_is_used(folder: Path) -> None:
    """Fail unless the tests import the copy, and not the code that it was made of."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    program = "import veilmeans.crypto.prg as m; print(m.__file__)"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, check=True
    )
    if not Path(ended.stdout.decode().strip()).resolve().is_relative_to(folder.resolve()):
        raise SystemExit("the tests would import the installed package, not the copy")


def main(faults: Sequence[Fault], description: str | None) -> None:
    parser = ArgumentParser(description=description)
    parser.add_argument("--only", default="", help="only faults whose name begins with this")
    arguments = parser.parse_args()
    sys.exit(not find_all([each for each in faults if each.name.startswith(arguments.only)]))


def find_all(chosen: Sequence[Fault]) -> bool:
    """Plant faults one at a time, and print which are found; return whether all are."""
    found = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        folder = Path(place) / "code"
        shutil.copytree(ROOT, folder, symlinks=True, ignore=_NOT_COPIED)
        check_copy_is_used(folder)
        passing: set[tuple[str, ...]] = set()
        for fault in chosen:
            if fault.tests not in passing and run_tests(folder, fault.tests) != PASSED:
                raise SystemExit(f"{' '.join(fault.tests)} fails without any fault")
            passing.add(fault.tests)
            before = fault.plant(folder)
            code = run_tests(folder, fault.tests)
            (folder / fault.file).write_text(before)
            found += code == FAILED
            outcome = {PASSED: "NOT FOUND", FAILED: "found"}.get(code, f"tests did not run (exit code {code})")
            print(f"{outcome}: {fault.name}", flush=True)
    print(f"{found} of {len(chosen)} found")
    return found == len(chosen)


if __name__ == "__main__":
    main(FAULTS, __doc__)
