/*---
precondition: followed_step
needs: [steps]
reason: no step has a successor, whose start is its end
remedy: record at least two steps
---*/
SELECT run_id
FROM models.steps
WHERE NOT is_last
