/*---
description: >
  The links that carry the collectives of a kind and axis, and their peak. Where several classes of links carry them,
  the peak is unknown.
---*/
WITH carried AS (
  SELECT
    run_id, c.kind, c.axis, c.link,
    MIN(CASE WHEN c.link = 'die' THEN d.peak_die_gbps ELSE COALESCE(d.peak_ici_gbps, d.peak_link_gbps) END) AS peak_gbps
  FROM main.collectives AS c
  INNER JOIN main.devices AS d USING (run_id, device_id)
  WHERE c.link IS DISTINCT FROM 'dcn'
  GROUP BY run_id, c.kind, c.axis, c.link
)

SELECT
  run_id, kind, axis,
  CASE WHEN COUNT(*) = 1 THEN MIN(link) ELSE 'mixed' END AS link, -- As of main.collectives; mixed for several.
  CASE WHEN COUNT(*) = 1 THEN MIN(peak_gbps) END AS peak_gbps -- Peak of a device over them, in one direction.
FROM carried
GROUP BY run_id, kind, axis
