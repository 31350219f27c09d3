"""The axes of a mesh are named once; what has a column or a field per axis has one for each of them."""

from dataclasses import fields

from tracewarehouse.collect.run_spec import MESH_AXES
from tracewarehouse.ingest.capture_names import AXES
from tracewarehouse.ingest.collectives.axis_inference import LIKELIHOODS
from tracewarehouse.ingest.devices.hosts import Device
from tracewarehouse.ingest.lake.schema import TABLES


def test_every_axis_has_its_columns() -> None:
    assert set(AXES) <= {c.name for c in TABLES["runs"].columns}
    assert set(AXES) == {c.name.removesuffix("_index") for c in TABLES["devices"].columns if c.name.endswith("_index")}
    assert set(AXES) == {f.name.removesuffix("_index") for f in fields(Device) if f.name.endswith("_index")}
    assert {len(chances) for chances in LIKELIHOODS.values()} == {len(AXES)}


def test_the_collector_lays_devices_out_along_the_same_axes() -> None:
    assert tuple(a for a in AXES if a in MESH_AXES) == MESH_AXES == ("pp", "dp", "ep", "tp")
