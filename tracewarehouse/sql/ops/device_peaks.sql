/*---
inline: true
description: >
  Peak rates of each device, by the type that a matrix product multiplies. A type for which the chip has no rate of its
  own runs at the rate of bf16.
---*/
SELECT
  run_id, device_id,
  'bf16' AS product_type, -- bf16, int8 or fp8.
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
