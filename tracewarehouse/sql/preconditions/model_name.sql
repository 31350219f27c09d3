/*---
precondition: model_name
reason: neither manifest nor card names the model
remedy: put a card.yaml that names it beside the capture
---*/
SELECT run_id
FROM main.runs
WHERE model IS NOT NULL
