/*---
precondition: single_rank
reason: the server has several data-parallel ranks, and captures do not tell which device is of which
---*/
SELECT run_id
FROM main.step_batches
GROUP BY run_id
HAVING MIN("rank") = MAX("rank")
