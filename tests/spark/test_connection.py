"""Where Spark is missing an error says what to install; through Spark Connect the client needs no Java."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.spark import connection
from tracewarehouse.spark.connection import check_java, connect
from tracewarehouse.warehouse import Warehouse

TW = Path(sys.executable).with_name("tw")


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(WarehouseError, match=r"pip install 'tracewarehouse\[spark\]'"):
        connect()


def test_without_java_its_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WarehouseError, match=r"needs Java 17, and there is no program java; .*openjdk-17-jre-headless"):
        check_java()
    (tmp_path / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(WarehouseError, match=r"needs Java 17, and .*java is Java 11; install"):
        check_java()


@pytest.mark.parametrize(
    ("master", "said"),
    [
        *(
            (m, "is not a master of Spark; name one such as")
            for m in ("nonsense", "local[x]", "http://a:7077", "spark:")
        ),
        ("spark://127.0.0.1:9", "^Spark cannot be reached: nothing answers at 127.0.0.1:9: "),
        ("spark://nohost.invalid,127.0.0.1:9", "nothing answers at nohost.invalid:7077: .*; 127.0.0.1:9: "),
        ("sc://127.0.0.1:9/;token=secret", "nothing answers at 127.0.0.1:9: "),
    ],
)
def test_a_master_that_is_not_there_is_told_before_java_starts(
    spark_installed: None, monkeypatch: pytest.MonkeyPatch, master: str, said: str
) -> None:
    monkeypatch.setattr(connection, "getproxies", dict)
    for start in ("_to_server", "_to_master"):
        monkeypatch.setattr(connection, start, None)
    with pytest.raises(WarehouseError, match=said) as refused:
        connect(master)
    assert "secret" not in str(refused.value)


def test_the_package_never_imports_pyspark() -> None:
    program = "import sys, tracewarehouse.cli, tracewarehouse.spark.executor, tracewarehouse.spark.warehouse; "
    program += "assert not {'pyspark', 'py4j'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestConnect:
    """A Spark Connect server on this machine, asked by a client that finds no Java."""

    @pytest.fixture(scope="class")
    def server(self, spark_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        import pyspark

        home = Path(pyspark.__file__).parent
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen(
            [
                home / "bin" / "spark-submit",
                "--master",
                "local[2,4]",
                "--conf",
                f"spark.connect.grpc.binding.port={port}",
                "--conf",
                "spark.ui.enabled=false",
                "--class",
                "org.apache.spark.sql.connect.service.SparkConnectServer",
                "spark-internal",
            ],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)},
            cwd=tmp_path_factory.mktemp("server"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 900
            while True:
                with socket.socket() as found:
                    if found.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.5)
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()

    def _tw(self, folder: Path, *arguments: str) -> str:
        environment = {n: v for n, v in os.environ.items() if n != "JAVA_HOME"} | {"PATH": "/nowhere"}
        done = subprocess.run(
            [TW, *arguments], capture_output=True, text=True, check=False, env=environment, cwd=folder
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def test_a_client_without_java_asks_and_ingests(
        self, server: str, duckdb_warehouse: Warehouse, tmp_path: Path
    ) -> None:
        on_spark = ("--engine", "spark", "--master", server)
        sql = "SELECT run_id, clock, tpot_ms FROM metrics.tpot ORDER BY ALL"
        place = ("-w", str(duckdb_warehouse.path))
        assert self._tw(tmp_path, *place, "query", *on_spark, sql, "--csv") == self._tw(
            tmp_path, *place, "query", sql, "--csv"
        )
        capture = Path(__file__).parents[2] / "data" / "captures" / "llama-tp4-b4-i16-o17"
        said = self._tw(tmp_path, "-w", "warehouse", "ingest", str(capture), *on_spark)
        assert "llama-tp4-b4-i16-o17\tingested" in said
