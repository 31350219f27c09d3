/*---
status: stable
unit: FLOP/s
polarity: none
grain: [run_id, instruction_id]
value: flops_per_s
needs: [op_costs]
description: >
  Each HLO instruction's place under the roofline: floating-point operations and memory traffic of its executions over
  their self time, all devices together. The bound is the resource that would take longest at its peak. attained is that
  time over the time that the instruction took.
notes: >
  Flops and bytes are those that the profiler states of instructions or of single ops, or that were given at ingest. Of
  kernels of PyTorch's products and elementwise operators, the shapes of the inputs tell them. Their bytes count each
  input and the result once, so what caches serve, or one array that goes in twice, may attain more than 1. The
  resources are the matrix units at the rate of the type that they multiply, the memory, and for a collective the links
  with the bytes that it sends. Links have the peak of their class. Between two devices of one chip it is the peak of
  the die. An instruction that computes has no bound if flops or bytes of an execution are unknown, as of a Pallas
  kernel. Halves of asynchronous ops have no row, because they state the bytes of a transfer that goes on between them.
  XProf's roofline has the same operations, bytes and peaks. It has no bound by links, and its time comes from another
  clock of the device, so single ops differ by some percent. Source: Williams et al., Roofline (2009).
---*/
SELECT
  run_id, instruction_id, name, category,
  flops_per_s, -- Operations per second of a device, in the executions whose operations are known; NULL without any.
  flops, -- Operations of an execution; their mean.
  bytes_accessed, -- Memory traffic of an execution; their mean.
  wire_bytes, -- Bytes that all executions send; NULL if unknown or not a collective.
  intensity, -- Operations per byte of memory traffic.
  self_ps / (executions * 1e6) AS self_us, -- Mean self time of an execution.
  bound, -- compute, memory, or the class of the links; NULL if a peak, a cost or the sent bytes are unknown.
  bound_ps / self_ps AS attained, -- Share of the bound's peak; NULL if the bound is unknown.
  executions,
  -- Share of the self time of the run's compute ops whose flops or bytes are unknown; NULL without such ops.
  unsized_share
FROM models.instruction_bounds
