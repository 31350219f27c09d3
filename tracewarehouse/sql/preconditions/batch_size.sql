/*---
precondition: batch_size
reason: neither manifest nor card gives the batch size
remedy: put a card.yaml with it beside the capture
---*/
SELECT run_id
FROM main.runs
WHERE batch_size IS NOT NULL
