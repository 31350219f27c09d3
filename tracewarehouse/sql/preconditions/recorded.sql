/*---
precondition: recorded
reason: the run is a compiled program, which no device has run, so it has no times
remedy: record a capture while the program runs
---*/
SELECT run_id
FROM main.runs
WHERE format NOT LIKE 'hlo%'
