/*---
description: >
  The attention kernels of vLLM on TPU and what a token takes in their cache of keys and values, from the shapes in the
  HLO text. The kernel's last operand is the cache of one layer, which has 4 or 5 dimensions: pages, tokens of a page,
  and what is stored of a token.
---*/
WITH operands AS (
  SELECT
    run_id, instruction_id,
    REGEXP_EXTRACT(
      hlo_text, '([a-z0-9]+)[[][0-9]+,[0-9]+,[0-9]+,[0-9]+(,[0-9]+)?[]][^ ]* %?[^ ,()]+[)], custom_call_target', 1
    ) AS dtype,
    REGEXP_EXTRACT(
      hlo_text, '[a-z0-9]+[[]([0-9,]+)[]][^ ]* %?[^ ,()]+[)], custom_call_target', 1
    ) AS dimensions
  FROM main.instructions
  WHERE
    opcode = 'custom-call'
    AND (name LIKE 'RPA%' OR name LIKE '%ragged_paged_attention%' OR op_name LIKE '%ragged_paged_attention%')
),

sized AS (
  SELECT
    run_id, instruction_id, CASE
      WHEN dtype IN ('bf16', 'f16') THEN 2
      WHEN dtype = 'f32' THEN 4
      WHEN dtype IN ('s8', 'u8') OR dtype LIKE 'f8%' THEN 1
    END AS element_bytes,
    CAST(NULLIF(REGEXP_EXTRACT(dimensions, '^([0-9]+),', 1), '') AS BIGINT) AS pages,
    CAST(NULLIF(REGEXP_EXTRACT(dimensions, '^[0-9]+,([0-9]+),', 1), '') AS BIGINT) AS page_tokens,
    CAST(NULLIF(REGEXP_EXTRACT(dimensions, '^[0-9]+,[0-9]+,([0-9]+)', 1), '') AS BIGINT)
    * CAST(NULLIF(REGEXP_EXTRACT(dimensions, '^[0-9]+,[0-9]+,[0-9]+,([0-9]+)', 1), '') AS BIGINT)
    * COALESCE(
      CAST(NULLIF(REGEXP_EXTRACT(dimensions, '^[0-9]+,[0-9]+,[0-9]+,[0-9]+,([0-9]+)', 1), '') AS BIGINT), 1
    ) AS token_elements
  FROM operands
  WHERE dtype <> ''
)

SELECT
  run_id,
  instruction_id, -- The kernel.
  element_bytes * token_elements AS token_bytes, -- Bytes of a token's keys and values in the layer, on a device.
  pages * page_tokens AS capacity_tokens -- Tokens that the cache of the layer can hold.
FROM sized
WHERE element_bytes * token_elements * pages * page_tokens > 0
