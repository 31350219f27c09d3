/*---
status: experimental
unit: bytes
polarity: none
grain: [run_id, phase, link]
value: sent_bytes
ranges: {share: [0, 1]}
needs: [link_traffic]
description: >
  Bytes that devices send to each other over a phase, by the class of the links that they take. Chips of a TPU slice
  reach each other by ICI across hosts too; the program says what goes between slices. Bytes within slices are counted
  as in traffic_matrix.
---*/
WITH executed AS (
  SELECT run_id, phase, instruction_id, device_id, COUNT(*) AS executions
  FROM main.collectives
  GROUP BY run_id, phase, instruction_id, device_id
),

sent AS (
  SELECT
    e.run_id, e.phase, e.executions, t.bytes, CASE
      WHEN s.chip_id = d.chip_id THEN 'die'
      WHEN s.host = d.host OR s.link = 'ici' THEN s.link
      ELSE 'dcn'
    END AS link
  FROM executed AS e
  INNER JOIN main.traffic AS t
    ON e.run_id = t.run_id AND e.instruction_id = t.instruction_id AND e.device_id = t.source_device_id
  INNER JOIN main.devices AS s ON t.run_id = s.run_id AND t.source_device_id = s.device_id
  INNER JOIN main.devices AS d ON t.run_id = d.run_id AND t.target_device_id = d.device_id
),

carried AS (
  SELECT run_id, phase, link, executions * bytes AS sent_bytes, executions
  FROM sent
  UNION ALL
  SELECT run_id, phase, link, wire_bytes AS sent_bytes, 1 AS executions
  FROM main.collectives
  WHERE link = 'dcn' AND wire_bytes IS NOT NULL
),

summed AS (
  SELECT run_id, phase, link, SUM(sent_bytes) AS sent_bytes, SUM(executions) AS executions
  FROM carried
  GROUP BY run_id, phase, link
),

compared AS (
  SELECT
    *,
    SUM(sent_bytes) OVER (PARTITION BY run_id, phase) AS phase_bytes
  FROM summed
)

SELECT
  run_id, phase,
  -- die (devices of one chip), ici, nvlink, fabric (Infinity Fabric), or dcn (between slices, or hosts without ICI);
  -- NULL for virtual devices, and where not known.
  link,
  CAST(sent_bytes AS BIGINT) AS sent_bytes,
  sent_bytes / NULLIF(phase_bytes, 0) AS share, -- Share of the bytes of the phase.
  CAST(executions AS BIGINT) AS executions -- Executions, once for each pair of devices; of dcn, for each sender.
FROM compared
