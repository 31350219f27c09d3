/*---
precondition: inter_chip_links
needs: [recorded]
reason: the capture is of a GPU, which has no inter-chip links
---*/
SELECT run_id
FROM main.runs
WHERE backend <> 'gpu'
