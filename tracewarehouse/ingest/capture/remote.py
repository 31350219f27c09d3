"""Copies remote captures into a local cache, once per version, to read them from there.

A location is a URI of any file system that fsspec supports, such as `gs://`, `s3://`, `https://` or `memory://`.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from tracewarehouse.ingest.capture.batches import is_batches
from tracewarehouse.ingest.capture.locations import CACHE_VARIABLE, cache_folder, is_remote
from tracewarehouse.ingest.errors import CaptureError, NoCaptureError
from tracewarehouse.ingest.readers.formats import LOOKED_FOR, SUFFIXES

Advance = Callable[[str, int, int | None], None]
"""Called while a file is copied, with its name, the bytes copied so far, and its size if known."""

_EXTRAS = {"gs": "gs", "gcs": "gs", "s3": "s3", "s3a": "s3", "http": "https", "https": "https"}
_DESCRIPTIONS = ("manifest.json", "card.yaml")
_PIECE = 8 << 20
_TRIES = 6
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 20.0


def local_copy(location: str | os.PathLike[str], advance: Advance | None = None) -> Path:
    """Return a local path for a location's captures: a path is returned unchanged, a URI is copied to the cache.

    From a folder, captures, manifests and cards are copied, in the same layout. A file is copied again only if its
    version (etag, or else size and time) has changed. An interrupted copy resumes where it stopped. A request that
    fails for a temporary reason is retried with growing pauses.

    Raises:
        NoCaptureError: the location does not exist, or holds no capture.
        CaptureError: the protocol is unknown, its driver is missing, access is denied, a transfer kept failing, or the
            cache cannot be written.
    """
    if not is_remote(location):
        return Path(location)
    uri = os.fspath(location)
    store = open_store(uri)
    files = store.captures()
    if files is None:
        raise NoCaptureError(f"{uri}: no such file or folder")
    is_file = len(files) == 1 and files[0].path == store.path
    if not is_file and not any(f.is_capture for f in files):
        raise NoCaptureError(f"{uri}: no capture there; looked for {LOOKED_FOR}, also gzipped, in all folders below it")
    home = cache_folder() / "captures" / hashlib.sha256(store.uri.encode()).hexdigest()[:16] / store.name
    mirror(store, files, home, advance)
    return home / files[0].place if is_file else home


@dataclass(frozen=True)
class RemoteFile:
    """A file in a store."""

    path: str
    """The store's own path of the file."""
    place: PurePosixPath
    """The path relative to the location; it never leads out of it."""
    size: int | None
    version: str | None
    """A text that changes whenever the content changes; None if the store has none."""

    @property
    def is_capture(self) -> bool:
        """Whether the file has the name of a capture."""
        return self.path.endswith(SUFFIXES)

    @property
    def is_description(self) -> bool:
        """Whether the file has the name of a manifest, a card, or a server's file about its batches."""
        return self.place.name in _DESCRIPTIONS or is_batches(self.place)


@dataclass(frozen=True)
class Store:
    """A location in an fsspec file system; every request to it is retried."""

    filesystem: Any
    path: str
    uri: str

    @property
    def name(self) -> str:
        """Last part of the location's path, without a URL's query and fragment."""
        path = urlsplit(self.path).path if self._is_web else self.path
        return _placed(PurePosixPath(path).name or "capture", self.uri).name

    @property
    def _is_web(self) -> bool:
        return self.path.startswith(("http://", "https://"))

    def captures(self) -> list[RemoteFile] | None:
        """Return the location's file, or the captures and descriptions below its folder; None if nothing is there."""
        info = self._info(self.path)
        if info is None or info["type"] == "file":
            return None if info is None else [self._file(PurePosixPath(self.name), info)]
        return [
            f
            for f in self.files()
            if (f.is_capture or f.is_description) and not any(p[0] == "." for p in f.place.parts)
        ]

    def files(self, below: str = "") -> list[RemoteFile]:
        """All files below the location, or below a folder in it, sorted by name."""
        root = f"{self.path}/{below}".rstrip("/")
        with _explained(root):
            self.filesystem.invalidate_cache()
            entries = _retrying(lambda: self.filesystem.find(root, detail=True))
        files = []
        for path, entry in sorted(entries.items()):
            place = _placed(path[len(root) :].lstrip("/"), self.uri)
            is_complete = entry.get("size") is not None and _version(entry) is not None
            info = entry if is_complete else self._info(path)  # a web server's listing has names only
            if info and info["type"] == "file":
                files.append(self._file(place, info))
        return files

    def _info(self, path: str) -> dict[str, Any] | None:
        try:
            with _explained(path):
                self.filesystem.invalidate_cache()
                info: dict[str, Any] = _retrying(lambda: self.filesystem.info(path))
        except NoCaptureError:
            return None
        is_listing = self._is_web and str(info.get("mimetype")).startswith("text/html")
        return {**info, "name": path, "type": "directory"} if is_listing else {**info, "name": path}

    def _file(self, place: PurePosixPath, info: dict[str, Any]) -> RemoteFile:
        return RemoteFile(info["name"], place, info.get("size"), _version(info))

    def now(self, file: RemoteFile) -> RemoteFile | None:
        """The current state of the file."""
        info = self._info(file.path)
        return self._file(file.place, info) if info else None


def open_store(uri: str) -> Store:
    """The store behind a URI.

    Raises:
        CaptureError: fsspec does not know the protocol, or its driver is not installed.
    """
    import fsspec

    protocol = uri.partition("://")[0].lower()
    try:
        filesystem, path = fsspec.core.url_to_fs(uri)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        remedy = f"pip install 'tracewarehouse[{extra}]'" if extra else str(error)
        raise CaptureError(f"{uri}: reading {protocol}:// needs a driver that is not installed; {remedy}") from None
    except ValueError as error:
        raise CaptureError(f"{uri}: cannot be opened: {error}; known are gs://, s3://, https://, memory://") from None
    return Store(filesystem, path.rstrip("/"), uri.rstrip("/"))


def mirror(store: Store, files: list[RemoteFile], home: Path, advance: Advance | None = None) -> None:
    """Make a folder hold the current versions of these files, and no others.

    Raises:
        CaptureError: a file cannot be copied, or the folder cannot be written.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        with (home / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # wait for a copy by another process instead of copying twice
            for file in files:
                if not _is_current(home / file.place, file):
                    _copy(store, file, home / file.place, advance)
            kept = {home / f.place for f in files}
            for path in [p for p in home.rglob("*") if p.is_file() and not p.name.startswith(".")]:
                if path not in kept:
                    path.unlink()
                    _note(path).unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(error) from None


def _copy(store: Store, file: RemoteFile, target: Path, advance: Advance | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    version = hashlib.sha256(repr((file.version, file.size)).encode()).hexdigest()[:16]
    part = target.with_name(f".{target.name}.{version}.part")
    for left in set(target.parent.glob(f".{glob.escape(target.name)}.*.part")) - {part}:
        left.unlink()
    before = store.now(file)  # not the listing's version, which may be written differently
    with part.open("a+b") as sink:
        if file.version is None:
            sink.truncate(0)
        with _explained(file.path):
            _retrying(lambda: _transfer(store, file, sink, advance))
    if store.now(file) != before:
        part.unlink()
        raise CaptureError(f"{file.path}: changed while it was copied; try again once it has been written")
    _note(target).unlink(missing_ok=True)
    part.replace(target)
    if file.version is not None:
        _note(target).write_text(file.version)


def _transfer(store: Store, file: RemoteFile, sink: BinaryIO, advance: Advance | None) -> None:
    try:
        _append(store, file, sink, advance, _PIECE)
    except ValueError:  # the server sends whole files only
        sink.truncate(0)
        _append(store, file, sink, advance, 0)


def _append(store: Store, file: RemoteFile, sink: BinaryIO, advance: Advance | None, block_size: int) -> None:
    done = sink.seek(0, os.SEEK_END)
    with store.filesystem.open(file.path, "rb", block_size=block_size) as source:
        if done:
            source.seek(done)
        while piece := source.read(_PIECE):
            done += _write(sink, piece)
            if advance:
                advance(str(file.place), done, file.size)
    if file.size is not None and done != file.size:
        if done > file.size:
            sink.truncate(0)
        raise ConnectionError(f"{done} of {file.size} bytes came")


def _write(sink: BinaryIO, piece: bytes) -> int:
    try:
        sink.write(piece)
        sink.flush()
    except OSError as error:
        raise _cannot_write(error) from None
    return len(piece)


def _cannot_write(error: OSError) -> CaptureError:
    return CaptureError(
        f"{cache_folder()}: remote files cannot be copied there: {error.strerror or error}; set {CACHE_VARIABLE} to a "
        "folder with room"
    )


def _is_current(target: Path, file: RemoteFile) -> bool:
    try:
        return file.version is not None and target.is_file() and _note(target).read_text() == file.version
    except OSError:
        return False


def _note(target: Path) -> Path:
    return target.with_name(f".{target.name}.version")


def _placed(place: str, uri: str) -> PurePosixPath:
    parts = place.split("/")
    if any(p in ("", ".", "..") or "\0" in p or len(p.encode(errors="surrogateescape")) > 200 for p in parts):
        raise CaptureError(f"{uri}: holds a file that no folder here can hold: {place!r}; copy it by hand")
    return PurePosixPath(*parts)


def _version(info: dict[str, Any]) -> str | None:
    for name in ("ETag", "etag", "generation", "md5Hash", "content_hash"):
        if info.get(name):
            return f"{name} {info[name]}"
    for name in ("mtime", "LastModified", "Last-Modified", "last_modified", "updated", "created"):
        if info.get(name) and info.get("size") is not None:
            return f"{name} {info[name]} size {info['size']}"
    return None


def _retrying(request: Callable[[], Any]) -> Any:
    import tenacity

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(_is_passing),
        stop=tenacity.stop_after_attempt(_TRIES),
        wait=tenacity.wait_random_exponential(multiplier=_FIRST_WAIT_SECONDS, max=_LONGEST_WAIT_SECONDS),
        reraise=True,
    )(_unmasked, request)


def _unmasked(request: Callable[[], Any]) -> Any:
    try:
        return request()
    except FileNotFoundError as error:
        # fsspec's web file system raises this for every answer that is not the file
        cause = error.__cause__
        if cause is not None and _status(cause) not in (None, 404, 410):
            raise cause from None
        raise


def _status(error: BaseException) -> int | None:
    status = getattr(error, "status", None) or getattr(error, "code", None)
    return int(status) if isinstance(status, int | str) and str(status).isdigit() else None


def _is_passing(error: BaseException) -> bool:
    if status := _status(error):
        return status >= 500 or status in (408, 429)
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return False
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in ("aiohttp", "aiobotocore")


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except CaptureError:
        raise
    except FileNotFoundError:
        raise NoCaptureError(f"{what}: no such file or folder") from None
    except Exception as error:  # every driver raises its own classes
        if isinstance(error, PermissionError) or _status(error) in (401, 403):
            remedy = "check that this machine has credentials for it"
        elif _is_passing(error):
            remedy = f"gave up after {_TRIES} tries; what was copied is kept, the next run goes on from there"
        else:
            remedy = "check the location"
        raise CaptureError(f"{what}: cannot be read: {_said(error)}; {remedy}") from None


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
