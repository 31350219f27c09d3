/*---
precondition: throughput
reason: the run has no throughput
remedy: metrics.missing says why
---*/
SELECT run_id
FROM main.metric_values
WHERE metric = 'throughput'
