"""Prints lines of commands that must go on when nobody reads their output any more."""

from __future__ import annotations

import errno
import os
import sys

import typer


def lasting_echo(line: object, err: bool = False) -> None:
    """Print a line; once nobody reads the output any more, discard this and all further lines.

    The reader is gone, for example, after `| head -1`, or when the terminal is closed.
    """
    try:
        typer.echo(line, err=err)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        stream = sys.stderr if err else sys.stdout
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123 (also where there is no such path)
            os.dup2(nowhere.fileno(), stream.fileno())
