"""The rows of the study as a warehouse, so that its page has every configuration that was ever computed.

A predicted run has up to 100 KB of ops, and the page asks a few numbers of it. So the runs of the rows have no ops, and
what models compute of ops comes from the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa

from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.harness.subject import traced_subject
from tracewarehouse.database.lens import add_all_views, begin_lens
from tracewarehouse.ingest.capture.hardware import chip_named, known_kind
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION, TABLES
from tracewarehouse.queries.read_only import literal, run_query
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.warehouse import Warehouse

_SIZES = ("hidden_size", "num_heads", "head_dim", "vocab_size")
_COUNTS = ("num_params", "num_params_active", "num_params_embedding")
_KEPT = r"""
CREATE TABLE kept AS
SELECT
  concat_ws('-', model, replace(mesh, ',', '-'), 'b' || batch_size, slice) AS run_id,
  c.* EXCLUDE (run_id), f.* EXCLUDE (model), d.* EXCLUDE (topology)
FROM rows AS c JOIN facts AS f USING (model) JOIN places AS d USING (topology)
WHERE tpot_ms IS NOT NULL
"""
_PHASES = """
  SELECT *, 'prefill' AS phase, ttft_ms AS step_ms, ttft_low_ms AS low, ttft_high_ms AS high,
         prefill_communication AS communication
  FROM kept WHERE ttft_ms IS NOT NULL
  UNION ALL
  SELECT *, 'decode', tpot_ms, tpot_low_ms, tpot_high_ms, decode_communication FROM kept
"""
_AXES = ", ".join(f"TRY_CAST(regexp_extract(mesh, '\\b{a}=(\\d+)', 1) AS INTEGER) AS {a}" for a in ("dp", "ep", "tp"))
_TABLES = {
    "runs": f"""SELECT *, run_id AS name, 'predicted' AS origin, 'tpu' AS backend, layers AS num_layers,
                       1 AS device_count, chips - 1 AS missing_devices, {_AXES} FROM kept""",  # noqa: S608  constants
    "devices": """SELECT run_id, 0 AS device_id, kind, usd_per_chip_h AS chip_price_usd_per_h,
                         peak_hbm_gbps FROM kept""",
    "predictions": """SELECT run_id, 'decode' AS phase, 1 AS ici_factor, 1 AS hbm_factor, 0 AS host_ps,
                             memory_bytes AS argument_bytes, 0 AS output_bytes, 0 AS temporary_bytes,
                             0 AS program_bytes, capacity_bytes FROM kept""",
    "collectives": """SELECT run_id, 0 AS device_id, 'decode' AS phase,
                             traffic_bytes_per_token * batch_size AS wire_bytes FROM kept""",
    "metric_values": """
      SELECT run_id, 'ttft' AS metric, '{"clock": "device"}' AS dimensions, ttft_ms AS value
      FROM kept WHERE ttft_ms IS NOT NULL
      UNION ALL
      SELECT run_id, 'tpot', '{"clock": "device"}', tpot_ms FROM kept
      UNION ALL
      SELECT run_id, 'throughput', '{}', tokens_per_s_per_chip * chips FROM kept WHERE tokens_per_s_per_chip > 0
      UNION ALL
      SELECT run_id, 'communication_fraction', format('{{"phase": "{}"}}', phase), communication
      FROM kept_steps WHERE communication IS NOT NULL""",
}
_OF_OPS = """
CREATE OR REPLACE VIEW metrics.prediction_range_v1 AS
SELECT run_id, phase, step_ms AS time_ms, low AS low_ms, high AS high_ms, 0 AS host_ms FROM kept_steps;
CREATE OR REPLACE MACRO macros.step_shares(runs) AS TABLE
SELECT run_id, UNNEST(parts, recursive := true), 1 AS steps FROM kept WHERE LIST_CONTAINS(runs, run_id);
CREATE OR REPLACE MACRO macros.speedups(runs) AS TABLE
SELECT run_id, 'faster_links' AS metric, UNNEST(links, recursive := true)
FROM kept WHERE LIST_CONTAINS(runs, run_id)
"""
"""In place of what models compute of ops."""


class KeptRuns(Warehouse):
    """The configurations of a study's table that have times, as runs without ops; only its page can be drawn of it."""

    def __init__(self, table: Path, models: Iterable[str]) -> None:
        super().__init__(table.parent)
        self._database = database = duckdb.connect()
        begin_lens(database)
        database.execute(f"CREATE VIEW rows AS FROM read_parquet({literal(str(table))})")
        slices = database.execute("SELECT DISTINCT topology FROM rows").fetchall()
        database.register("facts", pa.Table.from_pylist([_facts(model) for model in models]))
        database.register("places", pa.Table.from_pylist([_chip(topology) for (topology,) in slices]))
        database.execute(f"{_KEPT}; CREATE VIEW kept_steps AS {_PHASES}")
        for name, each in TABLES.items():
            more = f" UNION ALL BY NAME ({_TABLES[name]})" if name in _TABLES else ""
            source = f"(SELECT {each.nulls_sql} WHERE false{more})"
            database.execute(f"CREATE OR REPLACE VIEW main.{name} AS SELECT {each.names_sql} FROM {source}")  # noqa: S608
        add_all_views(database, self.definitions)
        database.execute(_OF_OPS)
        self.run_ids = [run_id for (run_id,) in database.execute("SELECT run_id FROM kept ORDER BY ALL").fetchall()]
        versions = [RunVersion(r, "", r, SCHEMA_VERSION, "", "", flags=["predicted"]) for r in self.run_ids]
        self._versions = {version.run_id: version for version in versions}
        self.lake = SimpleNamespace(runs=lambda: versions)  # type: ignore[assignment]

    def query(self, sql: str, /, *, read_only: bool = True, **parameters: Any) -> QueryResult:
        """Run SQL over the runs."""
        return run_query(self._database, sql, parameters, read_only=read_only, runs=list(self._versions.values()))

    def run(self, reference: str) -> RunVersion:
        """Find a run by its id."""
        return self._versions[reference]

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _facts(model: str) -> dict[str, Any]:
    facts = traced_subject(run_spec(model=model, mesh="tp=1", backend="jax")).facts
    return {"model": model.rpartition("/")[2]} | {name: getattr(facts, name) for name in (*_SIZES, *_COUNTS)}


def _chip(topology: str) -> dict[str, Any]:
    kind = known_kind(topology.partition(":")[0])[1]
    known = chip_named(kind) or {}
    price = known.get("list_price", {}).get("usd_per_chip_h")
    return {"topology": topology, "kind": kind, "peak_hbm_gbps": known.get("hbm_gbps"), "usd_per_chip_h": price}
