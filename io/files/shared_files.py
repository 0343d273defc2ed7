"""The files of a party on a place that its workers share: a bucket, any other Beam filesystem, or a mounted folder.

Objects have the names of the files that they stand for, below `shared`, and are sealed: whoever may read the place sees
names, sizes and times, and nothing else. With a key of the party's seed, K:

  salt   = HMAC-SHA256(K, "salt" · name · SHA-256(content)), 16 bytes     so a retry writes the same object
  key    = HMAC-SHA256(K, "key" · name · salt)                            one key for one name and content
  object = version · salt · AES-256-GCM(key, nonce i, piece i), …         the nonce also marks the last piece

An object under another name, altered or cut off is refused. That an old one was put back in the place of a newer one is
not noticed: the place is the party's own. A call that fails is repeated for `patience` seconds: an object store may be
slow, or away for a while. Sealed objects are cached on the local disk by name and the store's own digest.
"""

import errno
import hashlib
import hmac
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tenacity import Retrying, retry_if_not_exception_type, stop_after_delay, wait_exponential

from veilmeans.io.files.atomic_files import make_private_folder
from veilmeans.io.files.party_files import LOCAL, Bytes
from veilmeans.schemas.errors import StorageError, printable

_VERSION, _SALT, _TAG, _PIECE = b"VM1\0", 16, 16, 1 << 24
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_IN_MEMORY = 64 << 20  # bytes of opened objects that a process keeps
_ON_DISK = 8 << 30  # bytes of sealed objects that stay in the cache when a process begins
Result = TypeVar("Result")


# sealing
class SealError(OSError):
    """An object is not what this party sealed under its name."""


def seal(key: bytes, name: str, parts: Sequence[Bytes]) -> bytes:
    """Encrypt and authenticate a content under a name; the same object for the same content."""
    content = memoryview(b"".join(parts))
    salt = hmac.digest(key, b"salt " + name.encode() + b"\0" + hashlib.sha256(content).digest(), "sha256")[:_SALT]
    cipher = AESGCM(_object_key(key, name, salt))
    starts = range(0, max(len(content), 1), _PIECE)
    pieces = [cipher.encrypt(_nonce(i, at + _PIECE >= len(content)), content[at : at + _PIECE], None)
              for i, at in enumerate(starts)]  # fmt: skip
    return b"".join([_VERSION, salt, *pieces])


def unseal(key: bytes, name: str, sealed: Bytes) -> bytes:
    """Open an object that was sealed under this name; raise a SealError if it is another."""
    begin = len(_VERSION) + _SALT
    view = memoryview(sealed)
    if bytes(view[: len(_VERSION)]) != _VERSION or len(view) < begin + _TAG:
        raise SealError(errno.EBADMSG, "not sealed by this party")
    cipher = AESGCM(_object_key(key, name, bytes(view[len(_VERSION) : begin])))
    starts = range(begin, len(view), _PIECE + _TAG)
    try:
        return b"".join(
            cipher.decrypt(_nonce(i, at + _PIECE + _TAG >= len(view)), view[at : at + _PIECE + _TAG], None)
            for i, at in enumerate(starts)
        )
    except InvalidTag:
        raise SealError(errno.EBADMSG, "damaged, or sealed under another seed") from None


def _object_key(key: bytes, name: str, salt: bytes) -> bytes:
    return hmac.digest(key, b"key " + name.encode() + b"\0" + salt, "sha256")


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


# where objects are
class ObjectStore(Protocol):
    """A place of objects by name; every call may raise any error."""

    def put(self, name: str, content: bytes) -> None:
        """Store an object, whole or not at all."""

    def get(self, name: str) -> bytes:
        """Return an object."""

    def digest(self, name: str) -> str | None:
        """Return what the store says of an object's content, which is another if the content is; None without one."""

    def names(self, folder: str) -> list[str]:
        """List all objects below a folder, by their names in it."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, if they are there."""


class MountedFolder:
    """Objects in a folder that is mounted on all hosts."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def put(self, name: str, content: bytes) -> None:
        LOCAL.write(self._root / name, [content], durable=True)

    def get(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def digest(self, name: str) -> str | None:
        try:
            state = (self._root / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return f"{state.st_size} {state.st_mtime_ns} {state.st_ino}"

    def names(self, folder: str) -> list[str]:
        root = self._root / folder
        return [str(file.relative_to(root)) for file in root.rglob("*") if file.is_file() and file.suffix != ".part"]

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            (self._root / name).unlink(missing_ok=True)


class BeamStore:
    """Objects on a filesystem of Beam's: gs://, s3://, hdfs://. Its credentials and flags are Beam's own.

    Calls are not repeated here: `SharedFiles` does that.
    """

    def __init__(self, root: str, flags: Sequence[str]) -> None:
        from apache_beam.io.filesystems import FileSystems
        from apache_beam.options.pipeline_options import PipelineOptions

        from veilmeans.io.files.beam_retries import without_beam_retries

        FileSystems.set_options(PipelineOptions(list(flags)))
        self._root, self._files, self._once = root.rstrip("/"), FileSystems, without_beam_retries

    def put(self, name: str, content: bytes) -> None:
        with self._once(), self._files.create(f"{self._root}/{name}", compression_type="uncompressed") as file:
            file.write(content)

    def get(self, name: str) -> bytes:
        with self._once(), self._files.open(f"{self._root}/{name}", compression_type="uncompressed") as file:
            content: bytes = file.read()
        return content

    def digest(self, name: str) -> str | None:
        path = f"{self._root}/{name}"
        with self._once():
            try:
                return str(self._files.checksum(path))
            except Exception:
                if not self._files.exists(path):
                    return None
                raise

    def names(self, folder: str) -> list[str]:
        root = f"{self._root}/{folder}/"
        with self._once():
            return [each.path.removeprefix(root) for each in self._files.match([f"{root}**"])[0].metadata_list]

    def delete(self, names: Sequence[str]) -> None:
        if names:
            with self._once():
                self._files.delete([f"{self._root}/{name}" for name in names])


def open_store(root: str, flags: Sequence[str]) -> ObjectStore:
    """Return the objects below a path or the address of a Beam filesystem; `flags` are Beam's."""
    return BeamStore(root, flags) if "://" in root else MountedFolder(root)


# the party's files there
class SharedFiles:
    """The files below `storage`, as sealed objects. `cache`: a folder of this host; None: nothing is cached on disk."""

    def __init__(
        self, storage: Path, store: ObjectStore, key: bytes, place: str, patience: float, cache: Path | None = None
    ) -> None:
        self._storage, self._store, self._key, self._place = storage, store, key, place
        self._patience, self._cache = patience, None if cache is None else _Cache(cache)
        self._opened = _OpenedObjects(_IN_MEMORY)

    def exists(self, path: Path) -> bool:
        name = self._name(path)
        return name in self._opened or self._repeat(self._store.digest, name) is not None

    def read(self, path: Path, fresh: bool = False) -> pa.Buffer:
        name = self._name(path)
        if fresh:
            return self._open(name, self._get(path))
        opened = self._opened.get(name)
        if opened is None:
            opened = self._open(name, self._get_cached(path))
            self._opened.add(name, opened)
        return opened

    def write(self, path: Path, parts: Sequence[Bytes], durable: bool = False) -> None:  # noqa: ARG002
        name = self._name(path)
        self._opened.drop(name)
        self._repeat(self._store.put, name, seal(self._key, name, parts))

    def names(self, folder: Path) -> list[str]:
        below = self._repeat(self._store.names, self._name(folder))
        return sorted({name.partition("/")[0] for name in below})

    def delete(self, path: Path) -> None:
        self._delete([self._name(path)])

    def delete_folder(self, folder: Path) -> None:
        root = self._name(folder)
        self._delete([f"{root}/{name}" for name in self._repeat(self._store.names, root)])

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._opened.drop(name)
        self._repeat(self._store.delete, names)

    def _name(self, path: Path) -> str:
        return path.relative_to(self._storage).as_posix()

    def _open(self, name: str, sealed: Bytes) -> pa.Buffer:
        return pa.py_buffer(unseal(self._key, name, sealed))

    def _get(self, path: Path) -> bytes:
        return self._repeat(self._get_if_there, path)

    def _get_if_there(self, path: Path) -> bytes:
        """Return an object; a FileNotFoundError, which is not an error of the store, if it has none."""
        name = self._name(path)
        try:
            return self._store.get(name)
        except Exception:
            if self._store.digest(name) is None:
                raise FileNotFoundError(errno.ENOENT, "missing", str(path)) from None
            raise

    def _get_cached(self, path: Path) -> Bytes:
        """Return an object from the cache, if the store says that it is the same; else get it, and cache it."""
        if self._cache is None:
            return self._get(path)
        name = self._name(path)
        digest = self._repeat(self._store.digest, name)
        if digest is None:
            raise FileNotFoundError(errno.ENOENT, "missing", str(path))
        cached = self._cache.get(f"{self._place}/{name}", digest)
        if cached is not None:
            try:
                self._open(name, cached)
                return cached
            except SealError:
                pass  # the cache is damaged, not the object
        sealed = self._get(path)
        self._cache.add(f"{self._place}/{name}", digest, sealed)
        return sealed

    def _repeat(self, call: Callable[..., Result], *arguments: object) -> Result:
        """Call the store; repeat a call that fails for a reason that may pass."""
        retrying = Retrying(
            retry=retry_if_not_exception_type((StorageError, FileNotFoundError)),
            wait=wait_exponential(multiplier=_FIRST_PAUSE, max=_LONGEST_PAUSE),
            stop=stop_after_delay(self._patience),
            reraise=True,
        )
        try:
            result: Result = retrying(self._attempt, call, *arguments)
            return result
        except (StorageError, FileNotFoundError):
            raise
        except Exception as error:
            raise StorageError(
                f"the shared place {self._place} has not answered for {self._patience:g} s ({_cause(error)}): rerun "
                "when it is there again; nothing is lost"
            ) from None

    def _attempt(self, call: Callable[..., Result], *arguments: object) -> Result:
        try:
            return call(*arguments)
        except (StorageError, FileNotFoundError):
            raise
        except Exception as error:
            final = self._final(error)
            if final is not None:
                raise final from None
            raise

    def _final(self, error: Exception) -> StorageError | None:
        """The sentence for an error that does not pass by itself; None for one that may."""
        code = _status(error)
        if code == _INSUFFICIENT_STORAGE or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return StorageError(f"the shared place {self._place} is full: free some space and rerun; nothing is lost")
        refused = getattr(error, "errno", None) in (errno.EACCES, errno.EPERM, errno.EROFS)
        if refused or (code is not None and code in _REFUSALS):
            return StorageError(
                f"the shared place {self._place} refuses us ({_cause(error)}): check that it exists, and that driver "
                "and workers may read, write, list and delete there"
            )
        return None


_INSUFFICIENT_STORAGE = 507
_REFUSALS = (400, 401, 403, 404, 405)


def _status(error: BaseException) -> int | None:
    """The HTTP status in an error of a Beam filesystem, which may be wrapped in others; None if there is none."""
    for each in (error, *_within(error)):
        code = getattr(each, "code", getattr(each, "status_code", None))
        if isinstance(code, int):
            return code
    return None


def _cause(error: BaseException) -> str:
    """The innermost error, in a few words."""
    inner = [*_within(error)][-1:] or [error]
    text = printable(str(inner[0]).strip().partition("\n")[0])[:200]
    return f"{type(inner[0]).__name__}: {text}" if text else type(inner[0]).__name__


def _within(error: BaseException) -> list[BaseException]:
    details = getattr(error, "exception_details", None)
    if isinstance(details, dict):
        return [each for each in details.values() if isinstance(each, BaseException)]
    return [error.__cause__] if error.__cause__ is not None else []


class _OpenedObjects:
    """The opened objects that this process has used last, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size, self._lock = limit, 0, threading.Lock()
        self._objects: OrderedDict[str, pa.Buffer] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._objects

    def get(self, name: str) -> pa.Buffer | None:
        with self._lock:
            if name in self._objects:
                self._objects.move_to_end(name)
            return self._objects.get(name)

    def add(self, name: str, content: pa.Buffer) -> None:
        self.drop(name)
        if content.size > self._limit:
            return
        with self._lock:
            self._objects[name] = content
            self._size += content.size
            while self._size > self._limit:
                self._size -= self._objects.popitem(last=False)[1].size

    def drop(self, name: str) -> None:
        with self._lock:
            content = self._objects.pop(name, None)
            self._size -= 0 if content is None else content.size


class _Cache:
    """Sealed objects on the local disk, by name and digest; the oldest go when there are many."""

    def __init__(self, folder: Path) -> None:
        make_private_folder(folder)
        self._folder = folder
        self._shrink(_ON_DISK)

    def get(self, name: str, digest: str) -> bytes | None:
        try:
            return self._file(name, digest).read_bytes()
        except OSError:
            return None

    def add(self, name: str, digest: str, sealed: bytes) -> None:
        try:
            LOCAL.write(self._file(name, digest), [sealed])
        except StorageError:
            self._shrink(0)  # the local disk is full; the object is there without a cache, too

    def _file(self, name: str, digest: str) -> Path:
        return self._folder / hashlib.sha256(f"{name}\0{digest}".encode()).hexdigest()

    def _shrink(self, limit: int) -> None:
        files = [(file.stat().st_mtime, file.stat().st_size, file) for file in self._folder.iterdir()]
        size = sum(each[1] for each in files)
        for _, length, file in sorted(files):
            if size <= limit:
                return
            file.unlink(missing_ok=True)
            size -= length


def cache_of_host() -> Path:
    """The folder of this user's cache on a host of which nothing else is known."""
    return Path(tempfile.gettempdir()) / f"veilmeans-cache-{os.getuid()}"
