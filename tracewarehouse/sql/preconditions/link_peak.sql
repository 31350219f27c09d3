/*---
precondition: link_peak
needs: [accelerators]
reason: the devices' peak is unknown
remedy: name the device kind in the card
---*/
SELECT run_id
FROM main.devices
WHERE peak_ici_gbps > 0
