"""Connects to Spark: on this machine, to a cluster, or to a Spark Connect server."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.request import getproxies

from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.processes.pool import usable_cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*,4]"
"""All cores of this machine; a task that fails is tried four times, as on a cluster."""
_JAVA = 17
_MASTERS = re.compile(r"local(\[ *(\*|\d+) *(, *\d+ *)?\])?|local-cluster\[[\d, ]+\]|yarn|(spark|sc|k8s)://.+")
_PORTS = {"spark": 7077, "sc": 15002}
_SECONDS = 10
"""Seconds within which a host must answer."""
_SQL = {
    "spark.sql.ansi.enabled": "true",  # an overflow is an error, not another number
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.sql.storeAssignmentPolicy": "ANSI",
}
"""Settings that the answers depend on."""


def connect(master: str | None = None) -> SparkSession:
    """Connect to Spark, in a session with temporary views of its own.

    Args:
        master: a master of Spark, such as `local[4]`, `spark://host:7077` or `k8s://https://host:443`, or the URI
            `sc://host:15002` of a Spark Connect server; None for this machine.
    """
    master = master or DEFAULT_MASTER
    if importlib.util.find_spec("pyspark") is None:
        raise WarehouseError(
            "the engine spark needs pyspark, which is not installed: pip install 'tracewarehouse[spark]'"
        )
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    _check_master(master)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # pyspark logs what it raises, at length
        logging.getLogger(name).disabled = True
    try:
        session = _to_server(master) if master.startswith("sc://") else _to_master(master)
        for key, value in _SQL.items():
            session.conf.set(key, value)
    except WarehouseError:
        raise
    except Exception as error:  # errors of pyspark, py4j and grpc have no class in common
        raise WarehouseError(f"Spark cannot be reached at {master.partition(';')[0]}: {_sentence(error)}") from None
    return session


def is_local(master: str | None) -> bool:
    """Whether the workers of a master are on this machine."""
    return (master or DEFAULT_MASTER).startswith("local")


def _check_master(master: str) -> None:
    """Fail at once, not after minutes as Spark does, if there is no such master or nothing listens there."""
    if not _MASTERS.fullmatch(master):
        raise WarehouseError(
            f"{master!r} is not a master of Spark; name one such as local[4], spark://HOST:7077, sc://HOST:15002, "
            "k8s://https://HOST:443 or yarn"
        )
    scheme, _, rest = master.partition("://")
    if scheme not in _PORTS or (scheme == "sc" and getproxies()):  # a proxy may reach what this machine does not
        return
    refused = []
    for address in rest.partition("/")[0].split(","):
        host, _, port = address.rpartition(":") if re.search(r":\d+$", address) else (address, "", _PORTS[scheme])
        try:
            socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
        except (OSError, OverflowError) as error:
            refused.append(f"{host}:{port}: {error}")
        else:
            return
    raise WarehouseError(f"Spark cannot be reached: nothing answers at {'; '.join(refused)}")


def _to_server(uri: str) -> SparkSession:
    missing = [m for m in ("grpc", "google.rpc", "pandas", "zstandard") if not _is_installed(m)]
    if missing:
        raise WarehouseError(
            f"Spark Connect needs {', '.join(missing)}, which is not installed: pip install 'tracewarehouse[spark]'"
        )
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(uri).create()


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _to_master(master: str) -> SparkSession:
    check_java()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None and running.sparkContext.master != master:
        raise WarehouseError(
            f"this process is connected to Spark at {running.sparkContext.master} already; it cannot reach {master} too"
        )
    builder = (
        SparkSession.builder.master(master).appName("tracewarehouse").config("spark.ui.showConsoleProgress", "false")
    )
    if is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python of the workers
        builder = (
            builder.config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", f"{_half_memory()}m")
            .config("spark.sql.shuffle.partitions", str(4 * usable_cores()))
        )
    if running is not None:
        return running.newSession()
    with _quiet_start() as said:
        try:
            session = builder.getOrCreate()
        except Exception as error:
            raise WarehouseError(f"Spark cannot be started at {master}: {_sentence(error)}{said()}") from None
    session.sparkContext.setLogLevel("OFF")
    return session.newSession()


@contextmanager
def _quiet_start() -> Iterator[Callable[[], str]]:
    """Let Java write to a file, as it greets users with warnings on standard error; yields a reader of its errors."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as written:
        kept = os.dup(2)
        os.dup2(written.fileno(), 2)

        def said() -> str:
            written.seek(0)
            lines = [
                n for n in written.read().decode(errors="replace").splitlines() if "ERROR" in n or "Exception" in n
            ]
            return f" ({lines[-1].strip()[:300]})" if lines else ""

        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def check_java() -> None:
    """Check that this machine has the Java that Spark needs."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    remedy = (
        f"install Java {_JAVA} (on Debian and Ubuntu the package openjdk-{_JAVA}-jre-headless), or name a Spark "
        "Connect server, which needs no Java here: --master sc://HOST:15002"
    )
    if java is None:
        where = f"no program java in JAVA_HOME ({home})" if home else "there is no program java"
        raise WarehouseError(f"the engine spark needs Java {_JAVA}, and {where}; {remedy}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version and int(version[1]) < _JAVA:
        raise WarehouseError(f"the engine spark needs Java {_JAVA}, and {java} is Java {version[1]}; {remedy}")


def _half_memory() -> int:
    """Half of the memory, in megabytes; the other half is for Python processes that ingest, and for other programs."""
    return max(1024, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 >> 20)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
