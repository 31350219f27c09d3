/*---
precondition: traffic
needs: [collectives]
reason: every collective has devices that are not known
remedy: ingest the captures of all hosts together
---*/
SELECT run_id
FROM main.traffic
