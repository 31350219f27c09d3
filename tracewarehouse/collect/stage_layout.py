"""Decides which layers each stage of a pipeline holds, and how stages with different layers share one program."""

from __future__ import annotations

from dataclasses import dataclass

from tracewarehouse.ingest.capture.manifest import PipelineStage


@dataclass(frozen=True)
class StageLayout:
    """The stages of a pipeline, whose layers go through the slots of one program.

    A slot runs one kind of layer on all stages at once. A stage without a layer in a slot passes its hidden states
    through; its devices compute all the same, on zeros, because there is only one program.
    """

    stages: tuple[PipelineStage, ...]
    slots: int

    def layers_of(self, slot: int) -> list[int | None]:
        """Return the layer that each stage has in a slot; None if it has none."""
        return [
            stage.first_layer + slot - stage.first_slot
            if 0 <= slot - stage.first_slot <= stage.last_layer - stage.first_layer
            else None
            for stage in self.stages
        ]

    def layer_kinds(self) -> list[int]:
        """Return, for each slot, the number of a layer of its kind."""
        return [next(n for n in self.layers_of(slot) if n is not None) for slot in range(self.slots)]


def stage_layout(layers: int, dense: int, stages: int) -> StageLayout:
    """Share layers among stages.

    The first dense layers of a model of experts are the first stage's, in slots of their own. The layers after them,
    which cost the most, are spread as evenly as possible; the remainder goes to the last stages.

    Args:
        layers: Layers of the model.
        dense: How many of them, from the first on, differ from the others; 0 when all are alike.
        stages: Stages of the pipeline.

    Raises:
        ValueError: a stage would be empty.
    """
    dense = dense if dense < layers else 0
    least, more = divmod(layers - dense, stages)
    counts = [least + (stage >= stages - more) for stage in range(stages)]
    if counts[0] + dense == 0 or 0 in counts[1:]:
        kinds = f"{dense} dense layers, which are the first stage's, and {layers - dense} of experts"
        raise ValueError(f"pp={stages} has more stages than there are layers: {kinds if dense else layers}")
    out = [PipelineStage(first_layer=0, last_layer=dense + counts[0] - 1, first_slot=0)]
    for count in counts[1:]:
        first = out[-1].last_layer + 1
        out.append(PipelineStage(first_layer=first, last_layer=first + count - 1, first_slot=dense))
    return StageLayout(tuple(out), dense + max(counts))
