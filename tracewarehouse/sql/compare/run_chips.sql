/*---
description: >
  Number of chips that a run uses, including those of devices outside the capture. A device whose chip is unknown counts
  as one chip. Missing devices are assumed to share chips as those in the capture do.
---*/
WITH captured AS (
  SELECT run_id, MIN(kind) AS kind, COUNT(*) AS devices, COUNT(DISTINCT chip_id) + COUNT(*) - COUNT(chip_id) AS chips
  FROM main.devices
  GROUP BY run_id
)

SELECT
  run_id,
  c.kind, -- Kind of the devices; the first by name if there are several.
  c.chips AS captured_chips, -- Chips of the devices in the capture.
  (c.chips * (c.devices + COALESCE(r.missing_devices, 0)) + c.devices - 1) // c.devices AS chips -- Chips of the run.
FROM captured AS c
INNER JOIN main.runs AS r USING (run_id)
