/*---
status: compatibility
unit: "%"
polarity: higher_is_better
grain: [run_id]
value: overlap_percent
description: >
  Reproduces CCL-Bench's compute_comm_overlap with its faults, to explain a published number; use overlap_ratio
  instead.
notes: >
  It divides the time in which an event with a word of communication in its name and one with a word of compute run
  together by the time of communication. Devices and hosts are merged into one timeline, so one device's compute hides
  another's communication. Programs, loops and host frames count by their names. Only the host's steps count, each for
  itself if they overlap. If there are more than two, the first and the last do not count. Steps are events named
  $core.py:331 step, a line number of one version of vLLM, or else StepMarker events of more than a tenth of the
  longest. In Kineto traces every kernel without a word of communication computes, the marks on the host are those of
  PyTorch, vLLM or SGLang, and the value is the mean of the ranks; in exports of Nsight Systems the whole trace counts,
  and each device for itself.
ccl_bench: compute_comm_overlap
---*/
WITH candidates AS (
  SELECT
    run_id, event_id, name, start_ps, duration_ps,
    MIN(name) OVER (PARTITION BY run_id) AS used_name,
    MAX(duration_ps) OVER (PARTITION BY run_id, name) AS longest_ps
  FROM models.ccl_events
  WHERE name IN ('$core.py:331 step', 'StepMarker')
),

ranked AS (
  SELECT
    run_id, start_ps,
    start_ps + duration_ps AS end_ps,
    ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY start_ps, event_id) AS place,
    COUNT(*) OVER (PARTITION BY run_id) AS places
  FROM candidates
  WHERE name = used_name AND (name <> 'StepMarker' OR duration_ps * 10 > longest_ps)
),

counted AS (
  SELECT run_id, start_ps, end_ps
  FROM ranked
  WHERE places <= 2 OR (place > 1 AND place < places)
),

stepped AS (
  SELECT run_id
  FROM counted
  GROUP BY run_id
),

-- a run without a step has no row, and its events need no sweep
events AS (
  SELECT run_id, e.name, e.start_ps, e.start_ps + e.duration_ps AS end_ps
  FROM models.ccl_events AS e
  INNER JOIN stepped USING (run_id)
),

names AS (
  SELECT run_id, name
  FROM events
  GROUP BY run_id, name
),

sorted_names AS (
  SELECT
    run_id, name,
    REGEXP_MATCHES(
      LOWER(name),
      'nccl|all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|cross[-_]?device|sendrecv|collective'
    ) AS is_communication,
    REGEXP_MATCHES(LOWER(name), 'dot|convolution|gemm|matmul|fusion|compute|custom-call') AS has_compute_word
  FROM names
),

kernels AS (
  SELECT
    run_id, is_nsys,
    CASE WHEN is_nsys THEN CAST(device_id AS VARCHAR) ELSE host END AS place,
    start_ps, end_ps,
    REGEXP_MATCHES(
      lower_name,
      'nccl|all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|broadcast|cross[-_]?device|sendrecv'
    ) OR REGEXP_MATCHES(lower_name, 'collective') AS is_communication
  FROM models.ccl_kernels
  UNION ALL
  SELECT run_id, FALSE AS is_nsys, '' AS place, v.start_ps, v.end_ps, k.is_communication
  FROM events AS v
  INNER JOIN sorted_names AS k USING (run_id, name)
  WHERE k.is_communication OR k.has_compute_word
),

marks AS (
  SELECT run_id, host AS place, start_ps, start_ps + duration_ps AS end_ps
  FROM models.ccl_marks
  WHERE choice = 1 AND (places <= 2 OR (place > 1 AND place < places))
  UNION ALL
  SELECT run_id, '' AS place, start_ps, end_ps
  FROM counted
  UNION ALL
  SELECT run_id, place, MIN(start_ps) AS start_ps, MAX(end_ps) AS end_ps
  FROM kernels
  WHERE is_nsys
  GROUP BY run_id, place
),

edges AS (
  SELECT run_id, place, start_ps AS at_ps, 1 AS marks, 0 AS communications, 0 AS computes
  FROM marks
  UNION ALL
  SELECT run_id, place, end_ps AS at_ps, -1 AS marks, 0 AS communications, 0 AS computes
  FROM marks
  UNION ALL
  SELECT
    run_id, place, start_ps AS at_ps, 0 AS marks,
    CASE WHEN is_communication THEN 1 ELSE 0 END AS communications,
    CASE WHEN is_communication THEN 0 ELSE 1 END AS computes
  FROM kernels
  UNION ALL
  SELECT
    run_id, place, end_ps AS at_ps, 0 AS marks,
    CASE WHEN is_communication THEN -1 ELSE 0 END AS communications,
    CASE WHEN is_communication THEN 0 ELSE -1 END AS computes
  FROM kernels
),

turns AS (
  SELECT
    run_id, place, at_ps,
    SUM(marks) AS marks, SUM(communications) AS communications, SUM(computes) AS computes
  FROM edges
  GROUP BY run_id, place, at_ps
),

passed AS (
  SELECT
    run_id, place,
    LEAD(at_ps) OVER (PARTITION BY run_id, place ORDER BY at_ps) - at_ps AS length_ps,
    SUM(marks) OVER earlier AS marks,
    SUM(communications) OVER earlier AS communications,
    SUM(computes) OVER earlier AS computes
  FROM turns
  WINDOW earlier AS (PARTITION BY run_id, place ORDER BY at_ps ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),

of_places AS (
  SELECT
    run_id, place,
    SUM(length_ps * marks) AS communication_ps,
    COALESCE(SUM(length_ps * marks) FILTER (WHERE computes > 0), 0) AS overlap_ps
  FROM passed
  WHERE marks > 0 AND communications > 0
  GROUP BY run_id, place
  HAVING SUM(length_ps * marks) > 0
),

shares AS (
  SELECT
    run_id, place, communication_ps, overlap_ps,
    CAST(FLOOR(overlap_ps / communication_ps * 1e15 + 5e-1) AS BIGINT) AS units
  FROM of_places
),

marked AS (
  SELECT run_id, COUNT(*) AS steps
  FROM marks
  GROUP BY run_id
),

of_runs AS (
  SELECT
    run_id, CASE
      WHEN r.format = 'kineto' THEN SUM(p.units) / (1e13 * COUNT(*))
      ELSE SUM(p.overlap_ps) * 100 / SUM(p.communication_ps)
    END AS overlap_percent,
    SUM(p.communication_ps) AS communication_ps
  FROM shares AS p
  LEFT JOIN main.runs AS r USING (run_id)
  GROUP BY run_id, r.format
)

SELECT
  run_id,
  g.overlap_percent, -- Share of the communication in percent.
  g.communication_ps / 1e9 AS communication_ms, -- Time with communication in the steps.
  k.steps -- Steps that count.
FROM of_runs AS g
INNER JOIN marked AS k USING (run_id)
