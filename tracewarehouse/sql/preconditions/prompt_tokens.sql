/*---
precondition: prompt_tokens
needs: [prefill_ops]
reason: the prompt tokens of prefill steps are not known
remedy: put the server's batch files beside the capture, or record one prefill with batch size and lengths in a card.yaml
---*/
SELECT run_id
FROM models.prefill_work
