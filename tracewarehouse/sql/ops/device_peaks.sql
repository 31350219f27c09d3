/*---
inline: true
description: >
  Peak rates of each device, by the type that a matrix product multiplies. A type for which the chip has no rate of its
  own runs at the rate of bf16.
notes: >
  The matrix units of GPUs multiply TF32 at half the rate of bf16. Where the rate of f32 without them is not known, that
  of TF32 is the bound.
---*/
SELECT
  run_id, device_id,
  'bf16' AS product_type, -- bf16, int8, fp8, tf32 or f32.
  peak_flops_per_s -- Operations per second; no row where not known.
FROM main.devices
WHERE peak_flops_per_s > 0
UNION ALL
SELECT run_id, device_id, 'int8' AS product_type, COALESCE(peak_int8_flops_per_s, peak_flops_per_s) AS peak_flops_per_s
FROM main.devices
WHERE peak_flops_per_s > 0
UNION ALL
SELECT run_id, device_id, 'fp8' AS product_type, COALESCE(peak_fp8_flops_per_s, peak_flops_per_s) AS peak_flops_per_s
FROM main.devices
WHERE peak_flops_per_s > 0
UNION ALL
SELECT run_id, device_id, 'tf32' AS product_type, peak_tf32_flops_per_s AS peak_flops_per_s
FROM main.devices
WHERE peak_tf32_flops_per_s > 0
UNION ALL
SELECT
  run_id, device_id, 'f32' AS product_type, COALESCE(peak_f32_flops_per_s, peak_tf32_flops_per_s) AS peak_flops_per_s
FROM main.devices
WHERE peak_tf32_flops_per_s > 0
