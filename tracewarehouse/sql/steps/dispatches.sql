/*---
description: >
  When the host began to dispatch each execution of a program on a device, if the capture tells. A dispatch that begins
  after its execution is left out, because the clocks or the pairing are wrong.
---*/
WITH executions AS (
  SELECT run_id, device_id, "index" AS execution, start_ps
  FROM main.phases
  WHERE kind = 'module' AND device_id IS NOT NULL
),

launched AS (
  SELECT
    run_id, o.device_id, o.execution,
    COALESCE(CAST(s.int_value AS VARCHAR), s.string_value) AS launch
  FROM main.ops AS o
  INNER JOIN main.event_stats AS s USING (run_id, event_id)
  WHERE o.line IN ('XLA Modules', 'Launches') AND o.execution IS NOT NULL AND s.name = 'run_id'
),

-- on TPUs the runtime's DoEnqueueProgram and the execution share a run_id, and the former has its device's ordinal; on
-- GPUs the call that launches its first kernel
enqueued AS (
  SELECT
    run_id, h.host,
    COALESCE(CAST(l.int_value AS VARCHAR), l.string_value) AS launch,
    COALESCE(CAST(n.int_value AS VARCHAR), n.string_value) AS ordinal,
    MIN(h.start_ps) AS dispatch_ps
  FROM main.host_events AS h
  INNER JOIN main.event_stats AS l USING (run_id, event_id)
  INNER JOIN main.event_stats AS n USING (run_id, event_id)
  WHERE
    (h.name = 'DoEnqueueProgram' OR h.name LIKE 'cu%' OR h.name LIKE 'hip%')
    AND l.name = 'run_id' AND n.name = 'device_ordinal'
  GROUP BY run_id, h.host, launch, ordinal
),

-- on virtual CPU devices the executions of a host are numbered as these events are
called AS (
  SELECT
    run_id, host, start_ps AS dispatch_ps,
    ROW_NUMBER() OVER (PARTITION BY run_id, host ORDER BY start_ps, event_id) - 1 AS execution,
    COUNT(*) OVER (PARTITION BY run_id, host) AS calls
  FROM main.host_events
  WHERE name = 'PjRtCpuExecutable::Execute'
),

placed AS (
  SELECT
    run_id, device_id, e.execution, e.start_ps, d.host, d.backend,
    CAST(d.local_ordinal AS VARCHAR) AS ordinal,
    w.launch
  FROM executions AS e
  INNER JOIN main.devices AS d USING (run_id, device_id)
  LEFT JOIN launched AS w USING (run_id, device_id, execution)
),

counted AS (
  SELECT run_id, host, COUNT(DISTINCT execution) AS executions
  FROM placed
  GROUP BY run_id, host
)

SELECT
  run_id, p.device_id, p.execution,
  q.dispatch_ps -- Start of the host's dispatch.
FROM placed AS p
INNER JOIN enqueued AS q USING (run_id, host, launch, ordinal)
WHERE q.dispatch_ps <= p.start_ps
UNION ALL
SELECT run_id, p.device_id, execution, c.dispatch_ps
FROM placed AS p
INNER JOIN called AS c USING (run_id, host, execution)
INNER JOIN counted AS n USING (run_id, host)
WHERE p.backend = 'cpu' AND c.calls = n.executions AND c.dispatch_ps <= p.start_ps
