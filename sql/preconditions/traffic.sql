/*---
precondition: traffic
needs: [collectives]
reason: of no collective are all devices known
remedy: ingest the captures of all hosts together
---*/
SELECT run_id
FROM main.traffic
