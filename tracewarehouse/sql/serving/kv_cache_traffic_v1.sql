/*---
status: experimental
unit: bytes
polarity: none
grain: [run_id, device_id]
value: read_bytes_per_step
needs: [known_caches, decode_batches, single_rank]
description: >
  Bytes of the cache of keys and values that the attention kernels of a device read and write in a decode step, on
  average. A token's bytes in the cache are read for each token of context, and written for each token that is computed.
  The server states only the shortest context of a batch, so the bytes read are a lower bound.
notes: >
  The shape of the kernel's operand tells what a token takes. The mean is over all decode steps before another step.
  Only runs of vLLM on TPU have rows, because their kernels show the cache. A data-parallel run has no row, because
  nothing states which device holds which requests.
---*/
WITH worked AS (
  SELECT
    run_id, o.device_id, o.step,
    COUNT(*) AS kernels,
    SUM(c.token_bytes) AS token_bytes,
    SUM(o.self_ps) AS self_ps
  FROM models.leaf_ops AS o
  INNER JOIN models.attention_caches AS c USING (run_id, instruction_id)
  GROUP BY run_id, o.device_id, o.step
),

moved AS (
  SELECT
    run_id, w.device_id, w.kernels, w.token_bytes, w.self_ps,
    d.requests, w.token_bytes * d.context_tokens AS read_bytes,
    w.token_bytes * d.decode_tokens AS written_bytes
  FROM worked AS w
  INNER JOIN models.decode_contexts AS d USING (run_id, step)
  WHERE d.ranks = 1
)

SELECT
  run_id, device_id,
  SUM(read_bytes) / COUNT(*) AS read_bytes_per_step, -- Bytes that are read.
  -- lower if steps have several requests, because only their shortest context is known.
  CASE WHEN MAX(requests) > 1 THEN 'lower' END AS bound,
  SUM(written_bytes) / COUNT(*) AS written_bytes_per_step, -- Bytes that are written.
  SUM(token_bytes) / COUNT(*) AS token_bytes, -- Bytes of a token in the caches of all layers of the device.
  SUM(kernels) / COUNT(*) AS kernels_per_step, -- Executions of the kernels, one for each layer.
  SUM(self_ps) / (COUNT(*) * 1e9) AS kernel_ms_per_step, -- Their self time.
  SUM(read_bytes) * 1e3 / NULLIF(SUM(self_ps), 0) AS read_gbps, -- Bytes read over that time, decimal.
  COUNT(*) AS steps -- Decode steps that it covers.
FROM moved
GROUP BY run_id, device_id
