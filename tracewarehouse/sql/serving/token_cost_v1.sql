/*---
status: experimental
unit: chip-hours
polarity: lower_is_better
grain: [run_id, phase]
value: chip_hours_per_million_tokens
needs: [accelerators, timed_tokens]
description: >
  Chip hours for a million tokens, which are prompt tokens in prefill and generated ones in decode. All chips of the run
  count for the time of the phase's steps. The price of a chip hour gives the cost in USD.
notes: >
  It is the cost while the chips are busy with such steps, one after the other. Pauses between requests, the host's time
  beyond the steps, and batches that are not full come on top. The price is the list price in hardware.json or what
  --chip-price said at ingest; it is unknown if the price of any device is unknown, or if the chips differ in price.
---*/
WITH prices AS (
  SELECT
    run_id, CASE
      WHEN COUNT(chip_price_usd_per_h) = COUNT(*) AND MIN(chip_price_usd_per_h) = MAX(chip_price_usd_per_h)
        THEN MIN(chip_price_usd_per_h)
    END AS usd_per_h,
    MIN(chip_price_source) AS source
  FROM main.devices
  GROUP BY run_id
)

SELECT
  run_id,
  t.phase, -- prefill, decode, or mixed.
  -- Hours of a chip for a million tokens.
  h.chips * t.time_ps / (t.tokens * 3.6e9) AS chip_hours_per_million_tokens,
  h.chips * t.time_ps * p.usd_per_h / (t.tokens * 3.6e9) AS usd_per_million_tokens, -- Their price; NULL if unknown.
  p.usd_per_h AS chip_price_usd_per_h, -- Price of a chip for an hour; NULL if unknown.
  CASE WHEN p.usd_per_h IS NOT NULL THEN p.source END AS price_source, -- Where it comes from, with its date.
  h.chips, -- Chips of the run, with those outside the capture.
  t.tokens, -- Tokens of the steps that count.
  t.time_ps / 1e9 AS time_ms -- Time of these steps.
FROM models.phase_tokens AS t
INNER JOIN models.run_chips AS h USING (run_id)
INNER JOIN main.runs AS r USING (run_id)
LEFT JOIN prices AS p USING (run_id)
WHERE r.backend <> 'cpu'
