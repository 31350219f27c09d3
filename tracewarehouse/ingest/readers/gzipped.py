"""Uncompresses gzipped captures."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from pathlib import Path

from tracewarehouse.ingest.errors import CaptureError

_CHUNK = 1 << 20
_RATIO_FREE = 64 << 20  # below this size the ratio does not matter


def uncompressed(path: Path, descriptor: int, max_ratio: float) -> int:
    """Uncompress a gzip file into a temporary file without a name, and return its descriptor; the caller closes it.

    Args:
        path: the file, for errors.
        descriptor: the open file.
        max_ratio: highest ratio of uncompressed to compressed bytes.

    Raises:
        CaptureError: it is damaged, holds more, or there is no room for its content.
    """
    limit = max(os.fstat(descriptor).st_size * max_ratio, _RATIO_FREE)
    size = 0
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        with (
            tempfile.TemporaryFile() as plain,
            open(descriptor, "rb", closefd=False) as raw,
            gzip.GzipFile(fileobj=raw) as packed,
        ):
            while chunk := packed.read(_CHUNK):
                size += len(chunk)
                if size > limit:
                    raise CaptureError(
                        f"{path}: uncompresses to over {max_ratio:g} times its size; not taken for a capture. "
                        "If it is one, allow it with --max-gzip-ratio N (Python: max_gzip_ratio=N)"
                    )
                plain.write(chunk)
            plain.flush()
            return os.dup(plain.fileno())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CaptureError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise CaptureError(f"{path}: cannot be uncompressed: {error.strerror or error}") from None
