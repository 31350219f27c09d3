/*---
status: experimental
unit: us
polarity: lower_is_better
grain: [run_id, program, class, axis, what]
value: value_us
needs: [microbenchmark_programs]
description: >
  Times that the programs of the experiment calibrate show, of links, products, memories, attention kernels and the
  host. The median counts, and the 10th and 90th percentile are its spread.
notes: >
  models.microbenchmark_times says what an execution shows. A collective is named as it ran: the compiler may have
  chosen another kind than the program asks for. Percentiles are by nearest rank.
---*/
SELECT
  run_id, program,
  kind, -- collective, product, fusion, copy, attention or host.
  -- Of collectives the kind that ran, of products the type, of fusions and copies the memory; the attention kernel.
  class,
  axis,
  -- Bytes of a collective's message or of a copy, rows x inner length x columns of a product, shape of a fusion,
  -- sequences x heads x tokens x width of attention (over pages, heads of keys), or arguments of a program.
  what,
  chip, -- Kind of the device.
  value_us, -- Median time.
  low_us, -- 10th percentile.
  high_us, -- 90th percentile.
  n, -- Number of times, over all devices or groups.
  tflops_per_s, -- Of a product, and of flash attention: its rate at the median.
  gbps, -- Of a copy or fusion bytes read and written, of pages keys and values; at the median.
  hbm_share, -- Of copies, fusions and pages in HBM: the share of the peak that gbps is; NULL where the peak is not known.
  -- Of products in bf16 and of flash attention: the share of the peak that tflops_per_s is; NULL where it is not known.
  peak_share
FROM models.microbenchmark_rates
