/*---
precondition: followed_decode
needs: [decode]
reason: no decode step is followed by another
remedy: record at least two decode steps
---*/
SELECT run_id
FROM models.steps
WHERE phase = 'decode' AND NOT is_last_of_phase
