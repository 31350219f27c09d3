/*---
precondition: timed_collectives
needs: [recorded, collectives]
reason: every collective ends when it starts
---*/
SELECT run_id
FROM main.collectives
WHERE end_ps > start_ps
