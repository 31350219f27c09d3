/*---
precondition: fitted_transfers
needs: [several_sizes]
reason: the time of collectives does not grow with their size along a line (r2 is below 0.9)
---*/
SELECT run_id
FROM models.transfer_fit
