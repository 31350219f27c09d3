"""A folder of definitions in small: one model of all runs, and one metric that counts them."""

from __future__ import annotations

MODEL = """/*---
description: All runs.
columns:
  run_id: The run.
---*/
SELECT r.run_id AS run_id FROM main.runs AS r
"""
METRIC = """/*---
status: stable
unit: count
polarity: none
grain: [run_id]
value: n
description: Counts runs.
columns:
  run_id: The run.
  n: How many.
---*/
SELECT b.run_id AS run_id, COUNT(*) AS n FROM models.base AS b GROUP BY b.run_id
"""
