/*---
description: >
  The kernels of GPUs that CCL-Bench takes for collectives in Kineto traces, with what it takes for their bytes, only
  for the ccl_* metrics.
notes: >
  The bytes are the input elements times their size. For a gather that is one rank's part, and not what moves. CCL-Bench
  knows neither RCCL's _allgather_base nor 8-bit floats.
---*/
WITH messages AS (
  SELECT
    run_id, instruction_id,
    MAX(string_value) FILTER (WHERE name = 'Collective name') AS called,
    CAST(MAX(COALESCE(string_value, CAST(int_value AS VARCHAR))) FILTER (WHERE name = 'In msg nelems') AS BIGINT)
      AS elements,
    CAST(MAX(COALESCE(string_value, CAST(int_value AS VARCHAR))) FILTER (WHERE name = 'Group size') AS BIGINT)
      AS group_size,
    MAX(
      CASE
        WHEN string_value IN ('Double', 'Long') THEN 8
        WHEN string_value IN ('Float', 'Int') THEN 4
        WHEN string_value IN ('Half', 'BFloat16', 'Short') THEN 2
        WHEN string_value = 'Byte' THEN 1
      END
    ) FILTER (WHERE name = 'dtype') AS element_bytes
  FROM main.instruction_stats
  WHERE name IN ('Collective name', 'In msg nelems', 'Group size', 'dtype')
  GROUP BY run_id, instruction_id
)

SELECT
  run_id,
  host, -- The file, which is one rank.
  h.host_index, -- Its place among the run's files.
  k.event_id, k.duration_ps,
  m.group_size, -- Ranks of the group.
  m.elements * COALESCE(m.element_bytes, 0) AS bytes, -- Bytes that go in; NULL without arguments.
  m.element_bytes IS NOT NULL AS has_known_type, -- CCL-Bench knows the type of the elements.
  CASE
    WHEN
      REGEXP_MATCHES(k.name, '^nccl(Dev)?Kernel_AllReduce') OR m.called IN ('all_reduce', 'allreduce')
      THEN 'all-reduce'
    WHEN
      REGEXP_MATCHES(k.name, '^nccl(Dev)?Kernel_AllGather') OR m.called IN ('all_gather', 'allgather')
      THEN 'all-gather'
    WHEN
      REGEXP_MATCHES(k.name, '^nccl(Dev)?Kernel_ReduceScatter') OR m.called IN ('reduce_scatter', 'reducescatter')
      THEN 'reduce-scatter'
    WHEN
      REGEXP_MATCHES(k.name, '^nccl(Dev)?Kernel_SendRecv') AND m.called IN ('all_to_allv', 'all_to_all', 'alltoall')
      THEN 'all-to-all'
  END AS kind -- The kind; NULL for a kernel that CCL-Bench does not take for a collective.
FROM models.ccl_kernels AS k
INNER JOIN main.hosts AS h USING (run_id, host)
LEFT JOIN messages AS m USING (run_id, instruction_id)
WHERE NOT k.is_nsys
