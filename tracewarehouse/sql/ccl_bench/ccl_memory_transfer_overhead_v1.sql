/*---
status: compatibility
unit: "%"
polarity: lower_is_better
grain: [run_id]
value: overhead_percent
description: >
  Reproduces CCL-Bench's memory_transfer_overhead with its faults, to explain a published number; use copy_overhead
  instead.
notes: >
  It takes the time from the start of a copy's start half to the start of its done half in which no compute runs. It
  divides this by the sum of the host's steps, events named exactly $core.py:331 step, a line number of one version of
  vLLM. Devices are merged into one timeline of their own clocks, so one device's compute hides another's copies.
  Compute is every event of a TPU except numbered halves of copies, programs named jit_ and dependency-wait. So
  collectives, halves without a number, loops and steps are compute. The result is rounded to four decimals. In Kineto
  traces copies are kernels with a word such as copy_kernel in their names, not the copies by the driver; their time
  without compute is divided by that from the first to the last kernel, both summed over the ranks. In exports of Nsight
  Systems the copies are those by the driver, of all devices in one timeline.
ccl_bench: memory_transfer_overhead
---*/
WITH stepped AS (
  SELECT run_id, SUM(duration_ps) AS steps_ps
  FROM models.ccl_steps
  GROUP BY run_id
),

intervals AS (
  SELECT
    run_id, TRUE AS is_of_gpu, is_nsys,
    CASE WHEN is_nsys THEN '' ELSE host END AS place,
    event_id, start_ps, end_ps,
    NOT is_nsys
    AND REGEXP_MATCHES(
      lower_name, 'memcpy|memset|copy_kernel|copy[.]|copy-start|copy-done|(^|[^a-z0-9_])dma($|[^a-z0-9_])'
    )
      AS is_copy,
    is_nsys OR NOT REGEXP_MATCHES(
      lower_name,
      'nccl|allreduce|allgather|reducescatter|broadcast|cross[-_]?device|all_reduce|all_gather|reduce_scatter|sendrecv'
    ) AS is_no_communication
  FROM models.ccl_kernels
  WHERE end_ps > start_ps
  UNION ALL
  SELECT
    run_id, TRUE AS is_of_gpu, TRUE AS is_nsys, '' AS place,
    o.event_id, o.start_ps, o.start_ps + o.duration_ps AS end_ps,
    TRUE AS is_copy, TRUE AS is_no_communication
  FROM main.runs AS r
  INNER JOIN main.ops AS o USING (run_id)
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
  WHERE r.format = 'nsys' AND o.line LIKE 'Stream #%' AND i.name LIKE 'Memcpy%' AND o.duration_ps > 0
  UNION ALL
  SELECT
    run_id, FALSE AS is_of_gpu, FALSE AS is_nsys, '' AS place, event_id, start_offset_ps AS start_ps,
    end_offset_ps AS end_ps, TRUE AS is_copy, TRUE AS is_no_communication
  FROM models.ccl_copies
  WHERE purpose = 'overhead'
  UNION ALL
  SELECT
    run_id, FALSE AS is_of_gpu, FALSE AS is_nsys, '' AS place, event_id, device_offset_ps AS start_ps,
    device_offset_ps + device_duration_ps AS end_ps,
    FALSE AS is_copy, TRUE AS is_no_communication
  FROM models.ccl_events
  WHERE
    is_tpu AND device_offset_ps IS NOT NULL AND device_duration_ps > 0
    AND name NOT LIKE '%copy-start.%' AND name NOT LIKE '%copy-done.%' AND NOT REGEXP_MATCHES(name, '^jit_')
    AND name NOT LIKE '%dependency-wait%' AND name <> '$core.py:331 step'
),

-- copies and compute, the former told by `is_copy`
laid AS (
  SELECT
    run_id, is_of_gpu, is_nsys, place, start_ps, end_ps, is_copy,
    is_copy OR is_no_communication AS counts,
    MAX(CASE WHEN is_copy OR is_no_communication THEN end_ps END) OVER earlier AS covered_until_ps,
    MAX(CASE WHEN is_no_communication AND NOT is_copy THEN end_ps END) OVER earlier AS computed_until_ps
  FROM intervals
  WINDOW earlier AS (
    PARTITION BY run_id, place ORDER BY start_ps, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  )
),

of_places AS (
  SELECT
    run_id, is_of_gpu, is_nsys, place,
    SUM(
      CASE WHEN counts THEN GREATEST(end_ps - GREATEST(start_ps, COALESCE(covered_until_ps, start_ps)), 0) ELSE 0 END
      - CASE
        WHEN counts AND NOT is_copy THEN GREATEST(end_ps - GREATEST(start_ps, COALESCE(computed_until_ps, start_ps)), 0)
        ELSE 0
      END
    ) AS exposed_ps,
    MAX(end_ps) - MIN(start_ps) AS span_ps
  FROM laid
  GROUP BY run_id, is_of_gpu, is_nsys, place
  HAVING COUNT(*) FILTER (WHERE is_copy) > 0
),

-- on TPUs the time is that of the host's steps
measured AS (
  SELECT
    run_id, p.is_nsys, p.exposed_ps,
    CASE WHEN p.is_of_gpu THEN p.span_ps ELSE s.steps_ps END AS span_ps
  FROM of_places AS p
  LEFT JOIN stepped AS s USING (run_id)
)

SELECT
  run_id, CASE
    WHEN is_nsys THEN SUM(exposed_ps) * 100 / SUM(span_ps)
    ELSE ROUND(SUM(exposed_ps) * 100 / SUM(span_ps), 4)
  END AS overhead_percent, -- Share of that time in percent.
  SUM(exposed_ps) / 1e9 AS exposed_ms, -- Time in copies without compute.
  SUM(span_ps) / 1e9 AS steps_ms -- Duration of the host's steps; on GPUs, from the first to the last kernel.
FROM measured
GROUP BY run_id, is_nsys
HAVING SUM(span_ps) > 0
