/*---
description: >
  The marks of steps that CCL-Bench finds on the host in Kineto traces, only for the ccl_* metrics. They say when the
  host launched a step, and not when the GPU ran it.
---*/
WITH marks AS (
  SELECT
    run_id, e.host, e.event_id, e.start_ps, e.duration_ps, CASE
      WHEN REGEXP_MATCHES(e.name, '^ProfilerStep#[0-9]+$') THEN 'profiler step'
      WHEN e.name LIKE 'execute_context_%' THEN 'execute_context'
      ELSE 'run_batch'
    END AS kind,
    CAST(NULLIF(REGEXP_EXTRACT(e.name, '^ProfilerStep#([0-9]{1,18})$', 1), '') AS BIGINT) AS number
  FROM main.runs AS r
  INNER JOIN main.host_events AS e USING (run_id)
  WHERE
    r.format = 'kineto'
    AND (
      REGEXP_MATCHES(e.name, '^ProfilerStep#[0-9]+$') OR e.name LIKE 'execute_context_%'
      OR REGEXP_MATCHES(e.name, '(^|:) run_batch$')
    )
)

SELECT
  run_id, host,
  kind, -- profiler step of PyTorch, execute_context of vLLM, or run_batch of SGLang.
  event_id,
  start_ps, -- Start.
  duration_ps,
  -- Position among the marks of its kind in the file, from 1: by number, or else by time.
  ROW_NUMBER() OVER (PARTITION BY run_id, host, kind ORDER BY number, start_ps, event_id) AS place,
  COUNT(*) OVER (PARTITION BY run_id, host, kind) AS places, -- Number of such marks in the file.
  -- 1 for the kind in the file that CCL-Bench prefers.
  DENSE_RANK() OVER (
    PARTITION BY run_id, host
    ORDER BY CASE WHEN kind = 'profiler step' THEN 1 WHEN kind = 'execute_context' THEN 2 ELSE 3 END
  ) AS choice,
  -- The same of the whole run.
  DENSE_RANK() OVER (
    PARTITION BY run_id ORDER BY CASE WHEN kind = 'profiler step' THEN 1 WHEN kind = 'execute_context' THEN 2 ELSE 3 END
  ) AS run_choice,
  -- The kind that marks the batches of a server in the run; NULL if none does.
  MIN(CASE WHEN kind <> 'profiler step' THEN kind END) OVER (PARTITION BY run_id) AS server_kind
FROM marks
