/*---
precondition: lengths
reason: neither manifest nor card gives the numbers of input and output tokens
remedy: put a card.yaml with them beside the capture
---*/
SELECT run_id
FROM main.runs
WHERE input_length IS NOT NULL AND output_length IS NOT NULL
