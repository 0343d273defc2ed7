"""Files on a shared place: sealed, cached, repeated while the place is away, one sentence where that does not help."""

import errno
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.error_sentence import error_sentence
from veilmeans.io.files import shared_files
from veilmeans.io.files.shared_files import MountedFolder, SealError, SharedFiles, open_store, seal, unseal
from veilmeans.schemas.errors import StorageError

KEY, STORAGE = bytes(range(32)), Path("/nowhere/storage")
SEED = b"a secret that must not be found "


class FaultyStore(MountedFolder):
    """A mounted folder some of whose calls fail; counts all calls."""

    def __init__(self, root: str, fail: Callable[[int], Exception | None] = lambda _: None) -> None:
        super().__init__(root)
        self.calls, self._fail = 0, fail

    def _call(self) -> None:
        self.calls += 1
        error = self._fail(self.calls)
        if error is not None:
            raise error

    def put(self, name: str, content: bytes) -> None:
        self._call()
        super().put(name, content)

    def get(self, name: str) -> bytes:
        self._call()
        return super().get(name)

    def digest(self, name: str) -> str | None:
        self._call()
        return super().digest(name)

    def names(self, folder: str) -> list[str]:
        self._call()
        return super().names(folder)

    def delete(self, names: Sequence[str]) -> None:
        self._call()
        super().delete(names)


class HttpError(Exception):
    """An error of an object store with a status."""

    def __init__(self, code: int) -> None:
        super().__init__(f"status {code}")
        self.code = code


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "_FIRST_PAUSE", 0.001)


def files_on(store: MountedFolder, patience: float = 60.0, cache: Path | None = None, key: bytes = KEY) -> SharedFiles:
    return SharedFiles(STORAGE, store, key, "s3://bucket/payco", patience, cache)


# sealing
@given(st.lists(st.binary(max_size=40), max_size=4), st.text(max_size=10))
def test_what_was_sealed_is_opened_under_its_name_only(parts: list[bytes], name: str) -> None:
    sealed = seal(KEY, name, parts)
    assert unseal(KEY, name, sealed) == b"".join(parts)
    assert sealed == seal(KEY, name, [b"".join(parts)])
    for key, other in ((KEY, f"{name}x"), (bytes(32), name)):
        with pytest.raises(SealError):
            unseal(key, other, sealed)


def test_every_change_of_a_sealed_object_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also pieces that are left out, or change places."""
    monkeypatch.setattr(shared_files, "_PIECE", 8)
    content = bytes(range(40))
    sealed, begin, step = seal(KEY, "name", [content]), 20, 8 + 16
    assert unseal(KEY, "name", sealed) == content
    changed = [sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :] for i in range(len(sealed))]
    cut = [sealed[: begin + step * i] for i in range(5)]
    swapped = (
        sealed[:begin]
        + sealed[begin + step : begin + 2 * step]
        + sealed[begin : begin + step]
        + sealed[begin + 2 * step :]
    )
    for each in (*changed, *cut, swapped, sealed + sealed[begin : begin + step], b""):
        with pytest.raises(SealError):
            unseal(KEY, "name", each)


# files
def test_files_are_written_listed_read_and_deleted_and_never_lie_in_the_clear(tmp_path: Path) -> None:
    files = files_on(FaultyStore(str(tmp_path)))
    paths = [
        STORAGE / name for name in ("runs/a/operands/0.arrow", "runs/a/operands/1.arrow", "runs/a/centroids/7/0.arrow")
    ]
    for path in paths:
        assert not files.exists(path)
        files.write(path, [SEED, path.name.encode()])
        assert bytes(files.read(path)) == bytes(files.read(path, fresh=True)) == SEED + path.name.encode()
    assert files.names(STORAGE / "runs/a") == ["centroids", "operands"]
    assert files.names(STORAGE / "runs/a/operands") == ["0.arrow", "1.arrow"]
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and SEED in file.read_bytes()]
    files.delete(paths[0])
    files.delete_folder(STORAGE / "runs/a/centroids")
    assert [files.exists(path) for path in paths] == [False, True, False]
    with pytest.raises(FileNotFoundError):
        files.read(paths[0])
    with pytest.raises(FileNotFoundError):
        files.read(paths[2], fresh=True)


def test_another_process_sees_a_changed_file_when_it_asks_for_it_as_it_is_now(tmp_path: Path) -> None:
    one, other = (files_on(MountedFolder(str(tmp_path))) for _ in range(2))
    path = STORAGE / "checkpoints/1.arrow"
    for content in (b"first", b"second"):
        one.write(path, [content])
        assert bytes(other.read(path, fresh=True)) == content


def test_a_cached_object_is_not_got_again_and_the_cache_is_sealed(tmp_path: Path) -> None:
    path, cache = STORAGE / "triples/x/0.arrow", tmp_path / "cache"
    files_on(MountedFolder(str(tmp_path / "place"))).write(path, [SEED])
    calls = []
    for _ in range(2):
        store = FaultyStore(str(tmp_path / "place"))
        assert bytes(files_on(store, cache=cache).read(path)) == SEED
        calls.append(store.calls)
    assert calls == [2, 1]
    (cached,) = cache.iterdir()
    assert SEED not in cached.read_bytes()
    cached.write_bytes(b"damaged")
    assert bytes(files_on(store, cache=cache).read(path)) == SEED
    files_on(MountedFolder(str(tmp_path / "place"))).write(path, [b"made again"])
    assert bytes(files_on(store, cache=cache).read(path)) == b"made again"


# failures
def test_a_place_that_is_away_for_a_while_gets_the_same_bytes_in_the_end(tmp_path: Path) -> None:
    steady, away = (
        MountedFolder(str(tmp_path / "a")),
        FaultyStore(str(tmp_path / "b"), lambda n: TimeoutError() if n % 7 else None),
    )
    path = STORAGE / "runs/a/operands/0.arrow"
    for store in (steady, away):
        files = files_on(store)
        files.write(path, [SEED])
        assert bytes(files.read(path)) == SEED
        assert files.names(path.parent) == ["0.arrow"]
    assert steady.get("runs/a/operands/0.arrow") == (tmp_path / "b/runs/a/operands/0.arrow").read_bytes()


def failing(tmp_path: Path, error: Exception) -> Iterator[str]:
    files = files_on(FaultyStore(str(tmp_path), lambda _: error), patience=0.05)
    path = STORAGE / "runs/a/operands/0.arrow"
    for call in (lambda: files.write(path, [SEED]), lambda: files.read(path), lambda: files.names(path.parent)):
        yield error_sentence(call, StorageError)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionError("refused"), "has not answered for 0.05 s (ConnectionError: refused)"),
        (HttpError(503), "has not answered for 0.05 s"),
        (OSError(errno.ENOSPC, "No space left on device"), "is full"),
        (HttpError(507), "is full"),
        (HttpError(403), "refuses us (HttpError: status 403)"),
        (PermissionError(errno.EACCES, "Permission denied"), "refuses us"),
    ],
)
def test_a_place_that_stays_away_is_full_or_closed_is_one_sentence(tmp_path: Path, error: Exception, said: str) -> None:
    for sentence in failing(tmp_path, error):
        assert "the shared place s3://bucket/payco" in sentence
        assert said in sentence


def test_an_object_of_another_seed_is_refused(tmp_path: Path) -> None:
    path = STORAGE / "seed"
    files_on(MountedFolder(str(tmp_path))).write(path, [SEED])
    with pytest.raises(SealError, match="another seed"):
        files_on(MountedFolder(str(tmp_path)), key=bytes(32)).read(path)


# an object store
def test_files_in_an_emulated_s3_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from apache_beam.io.filesystems import FileSystems
    from moto.server import ThreadedMotoServer

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setattr(FileSystems, "_pipeline_options", None)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        import boto3

        address = "http://{}:{}".format(*server.get_host_and_port())
        client = boto3.client("s3", endpoint_url=address, region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        flags = [f"--s3_endpoint_url={address}", "--s3_region_name=us-east-1"]
        files = files_on(open_store("s3://bucket/payco", flags), cache=tmp_path / "cache")
        path = STORAGE / "runs/a/operands/0.arrow"
        assert not files.exists(path)
        assert files.names(path.parent) == []
        with pytest.raises(FileNotFoundError):
            files.read(path, fresh=True)
        for content in (SEED, SEED * 2):
            files.write(path, [content])
            assert bytes(files.read(path)) == bytes(files.read(path, fresh=True)) == content
        assert files.exists(path)
        assert files.names(path.parent) == ["0.arrow"]
        stored = client.get_object(Bucket="bucket", Key="payco/runs/a/operands/0.arrow")["Body"].read()
        assert stored == seal(KEY, "runs/a/operands/0.arrow", [SEED * 2])
        files.delete(path)
        files.delete(path)
        files.delete_folder(path.parent)
        assert not files.exists(path)
    finally:
        server.stop()
