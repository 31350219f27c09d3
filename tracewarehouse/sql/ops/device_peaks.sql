/*---
inline: true
description: >
  Peak rates of each device, by the type that a matrix product multiplies. A type for which the chip has no rate of its
  own runs at the rate of bf16.
notes: >
  The matrix units of GPUs multiply TF32 at half the rate of bf16. Where the rate of f32 without them is not known, that
  of TF32 is the bound. Those known are of A100 (19.5 TFLOP/s), H100 and H200 with
  SXM (66.9) and MI300X and MI325X (163.4), by their rate of bf16. Sources: kunwar.page, appendix D;
  glennklockwood.com/garden/processors/h100; github.com/AMD-AGI/Hyperloom, roofline table.
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
SELECT run_id, device_id, 'tf32' AS product_type, peak_flops_per_s / 2 AS peak_flops_per_s
FROM main.devices
WHERE peak_flops_per_s > 0 AND backend = 'gpu'
UNION ALL
SELECT
  run_id, device_id, 'f32' AS product_type,
  CASE
    WHEN peak_flops_per_s = 312e12 THEN 19.5e12
    WHEN peak_flops_per_s = 989e12 THEN 66.9e12
    WHEN peak_flops_per_s = 1307e12 THEN 163.4e12
    ELSE peak_flops_per_s / 2
  END AS peak_flops_per_s
FROM main.devices
WHERE peak_flops_per_s > 0 AND backend = 'gpu'
