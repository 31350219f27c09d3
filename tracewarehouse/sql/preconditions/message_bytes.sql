/*---
precondition: message_bytes
needs: [collectives]
reason: no collective has a known message size
remedy: record with the HLO of the programs
---*/
SELECT run_id
FROM main.collectives
WHERE message_bytes IS NOT NULL
