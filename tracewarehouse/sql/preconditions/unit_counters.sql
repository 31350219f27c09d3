/*---
precondition: unit_counters
needs: [recorded]
reason: the profiler states no utilization by counters of the hardware
---*/
SELECT run_id
FROM main.plane_stats
WHERE name LIKE '%_utilization_percent' AND COALESCE(double_value, int_value) IS NOT NULL
