/*---
precondition: decode
needs: [phases]
reason: no step is a decode
remedy: record for longer, while tokens are generated
---*/
SELECT run_id
FROM models.steps
WHERE phase = 'decode'
