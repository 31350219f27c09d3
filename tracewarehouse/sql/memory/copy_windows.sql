/*---
inline: true
description: >
  Copies on a device from start to end: a single copy op, or an asynchronous op (not a collective) from its start half
  to the end of its done half. A done ends the last start of its instruction before it on the device. A half without a
  partner has no window.
---*/
SELECT
  run_id,
  c.event_id, -- The copy, or the start.
  c.device_id,
  -- copy for copies of a program, async for its other asynchronous ops. A copy by the driver of a GPU has its direction,
  -- such as host_to_device, or other where its name tells none.
  CASE
    WHEN i.opcode IN ('copy', 'copy-start', 'copy-done') THEN 'copy'
    WHEN COALESCE(i.category, '') <> 'memcpy' THEN 'async'
    WHEN i.name LIKE '%HtoD%' OR i.name LIKE '%H2D%' THEN 'host_to_device'
    WHEN i.name LIKE '%DtoH%' OR i.name LIKE '%D2H%' THEN 'device_to_host'
    WHEN i.name LIKE '%DtoD%' OR i.name LIKE '%D2D%' THEN 'device_to_device'
    WHEN i.name LIKE '%PtoP%' OR i.name LIKE '%P2P%' THEN 'peer_to_peer'
    ELSE 'other'
  END AS kind,
  c.phase, -- Phase in which it starts; NULL in a step without one, outside before the first and after the last.
  c.step, -- Step in which it starts; NULL outside of steps.
  c.start_ps, -- Start of the window.
  c.end_ps, -- End of the window, exclusive.
  COALESCE(c.bytes, i.bytes_accessed) AS bytes, -- Those that the event states, else the instruction; NULL if unknown.
  c.is_async, -- True for a start with its done.
  -- Time of the window that neither another kind of op nor an earlier copy covers.
  c.exposed_added_ps
FROM main.copies AS c
INNER JOIN main.instructions AS i USING (run_id, instruction_id)
