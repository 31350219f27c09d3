/*---
precondition: experts
needs: [layers]
reason: no op is known to belong to a mixture of experts
---*/
SELECT run_id
FROM main.instructions
WHERE part = 'moe'
