/*---
precondition: matrix_peak
needs: [accelerators]
reason: the devices' peak is unknown
remedy: name the device kind in the card
---*/
SELECT run_id
FROM main.devices
WHERE peak_flops_per_s > 0
