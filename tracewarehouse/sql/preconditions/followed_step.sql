/*---
precondition: followed_step
needs: [steps]
reason: no step is followed by another, whose start would end it
remedy: record at least two steps
---*/
SELECT run_id
FROM models.steps
WHERE NOT is_last
