/*---
status: experimental
unit: ratio
polarity: higher_is_better
grain: [run_id, phase, shape, operand_dtype, flops]
value: efficiency
ranges: {efficiency: [0, 1], unsized_share: [0, 1]}
needs: [matrix_peak, product_costs]
description: >
  Operations of matrix products over what the devices could do at peak in the products' self time, by shape and type.
notes: >
  A product is known by its result's shape and the operations of one execution: 2 m n k for m x k times k x n. A
  fusion's operations and time include what is fused with it. Operations are those that the profiler states, without
  work that the compiler added, or those given at ingest. Of PyTorch's products the shapes of the operator state them, if
  the profiler records shapes. They count for one kernel of each call, and what adds up parts of the product is not in
  its time. Products of f32 on a GPU have the peak of TF32, unless the kernel's name says that it uses no matrix units.
  Products with unknown operations, and kernels whose operands nothing states, have no row. unsized_share says how much
  time such ops take.
---*/
WITH sized AS (
  SELECT
    run_id, t.phase, t.device_id, t.op_class, i.shape, i.operand_dtype, t.product_type,
    COALESCE(t.model_flops, t.flops) AS flops,
    t.ops, t.self_ps
  FROM models.instruction_time AS t
  INNER JOIN main.instructions AS i USING (run_id, instruction_id)
),

shares AS (
  SELECT
    run_id, phase,
    COALESCE(SUM(self_ps) FILTER (WHERE flops IS NULL), 0) / NULLIF(SUM(self_ps), 0) AS unsized_share
  FROM sized
  WHERE op_class = 'compute'
  GROUP BY run_id, phase
),

products AS (
  SELECT
    run_id, s.phase, s.shape, s.operand_dtype, s.flops,
    MAX(k.peak_flops_per_s) AS peak_flops_per_s,
    SUM(s.self_ps) AS self_ps,
    SUM(s.ops) AS executions
  FROM sized AS s
  INNER JOIN models.device_peaks AS k USING (run_id, device_id, product_type)
  WHERE s.flops > 0
  GROUP BY run_id, s.phase, s.shape, s.operand_dtype, s.flops
)

SELECT
  p.run_id, p.phase,
  p.shape, -- Shape of the result.
  p.operand_dtype, -- Element type that it multiplies.
  p.flops, -- Operations of one execution.
  CAST(p.flops AS DOUBLE) * p.executions * 1e12 / (p.self_ps * p.peak_flops_per_s) AS efficiency, -- Share of the peak.
  CAST(p.flops AS DOUBLE) * p.executions / p.self_ps AS tflops_per_s, -- Operations over self time, 10^12 per second.
  p.self_ps / 1e9 AS self_ms, -- Self time over all devices.
  p.self_ps / (p.executions * 1e6) AS mean_us, -- Mean self time of an execution.
  CAST(p.executions AS BIGINT) AS executions,
  p.peak_flops_per_s, -- Peak of a device for the type; the largest where devices or kernels differ.
  -- Share of the phase's compute time in ops whose operations are not known.
  s.unsized_share
FROM products AS p
LEFT JOIN shares AS s ON p.run_id = s.run_id AND p.phase IS NOT DISTINCT FROM s.phase
WHERE p.self_ps > 0
