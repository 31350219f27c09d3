"""Makes the tokens with which a run begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracewarehouse.collect.errors import CollectError

if TYPE_CHECKING:
    from tracewarehouse.collect.run_spec import RunSpec

TOKENIZER = "tokenizer.json"
TEXT = (
    "A program for several chips spends part of its time computing and part of it waiting for numbers that another "
    "chip has. The profiler writes down both, and it is for the reader to find out which of the two was the longer."
)
"""The prompt of runs that give none; written for this purpose."""
FIRST_ORDINARY = 3
"""The first token id that is ordinary in the tiny models; those below are special."""


@dataclass(frozen=True)
class Prompt:
    """Prompt tokens and where they come from."""

    tokens: Any
    """[batch, input_length] of int64, on the host."""
    source: str
    """`text` (tokenised) or `random tokens`."""


def run_prompt(spec: RunSpec, vocabulary: int, folder: Path | None = None) -> Prompt:
    """Return the prompt of a run, which is the same in every process with the same files.

    Args:
        spec: The run.
        vocabulary: Size of the model's vocabulary.
        folder: Folder of a published model; its tokenizer is used if it is there.

    Raises:
        CollectError: the run gives a text, but there is no tokenizer; or the tokenizer cannot be read or belongs to
            another model.
    """
    import torch

    if folder is not None and (folder / TOKENIZER).is_file():
        rows = _tokenised(folder / TOKENIZER, spec.prompt or TEXT, spec.batch, spec.input_length)
        tokens = torch.tensor(rows)
        if int(tokens.max()) >= vocabulary:
            raise CollectError(
                f"{folder / TOKENIZER}: gives token {int(tokens.max())}, but the model has {vocabulary}; is it another "
                "model's?"
            )
        return Prompt(tokens, "text")
    if spec.prompt is not None:
        raise CollectError(f"{folder}: a prompt needs {TOKENIZER}, which is not there; add it or leave out the prompt")
    generator = torch.Generator().manual_seed(spec.seed + 1)
    shape = (spec.batch, spec.input_length)
    return Prompt(torch.randint(FIRST_ORDINARY, vocabulary, shape, generator=generator), "random tokens")


def _tokenised(file: Path, text: str, batch: int, length: int) -> list[list[int]]:
    """Return [batch][length]: the tokenizer's first tokens, then the text over and over, each row one token on."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more special
        raise CollectError(f"{file}: cannot be read as a tokenizer: {error}") from None
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if not ids:
        raise CollectError(f"{file}: gives no token for the prompt {text!r}")
    complete = tokenizer.encode(text).ids
    start = next((i for i in range(len(complete)) if complete[i : i + len(ids)] == ids), 0)
    return [[*complete[:start], *(ids[(row + i) % len(ids)] for i in range(length))][:length] for row in range(batch)]
