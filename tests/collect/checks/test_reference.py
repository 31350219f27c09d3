"""The comparison with plain torch, in a process of its own: torch warns on import, and here warnings are errors."""

from __future__ import annotations

import importlib.util

import pytest

from tests.collect.torch_processes import TorchProcesses

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("torch_xla is not installed: pip install 'tracewarehouse[collect]'", allow_module_level=True)

PROGRAM = """
import json
import torch
from tracewarehouse.collect.errors import CheckError
from tracewarehouse.collect.checks.reference import compare

# One sequence, three steps, three tokens: token 2, then a near tie of 0 and 1, then token 1.
expected = torch.tensor([[[0.0, 0.1, 0.9], [0.50001, 0.5, 0.1], [0.2, 0.8, 0.1]]])
tie = expected.clone()
tie[0, 1] = torch.tensor([0.5, 0.50001, 0.1])
tie[0, 2] = torch.tensor([9.0, 0.0, 0.0])
wrong = expected.clone()
wrong[0, 2] = torch.tensor([0.9, 0.8, 0.1])
not_a_number = expected.clone()
not_a_number[0, 0, 0] = torch.nan

def outcome(logits, dropped=None):
    try:
        agreement = compare(logits, expected, "float32", dropped)
    except CheckError as error:
        return str(error)
    return [agreement.tokens_equal, round(agreement.max_logit_error, 6), round(agreement.comparable_share, 3)]

found = {n: outcome(t) for n, t in dict(same=expected, tie=tie, wrong=wrong, nan=not_a_number).items()}
found["dropped at the wrong step"] = outcome(wrong, torch.tensor([[0, 0, 3]]))
found["dropped before it"] = outcome(wrong, torch.tensor([[0, 1, 0]]))
found["dropped at once"] = outcome(wrong, torch.tensor([[2, 0, 0]]))
found["nothing dropped"] = outcome(wrong, torch.tensor([[0, 0, 0]]))
print(json.dumps(found))
"""


def test_a_difference_is_an_error_unless_rounding_explains_it(torch_processes: TorchProcesses) -> None:
    outcome = torch_processes.answer(PROGRAM)

    assert outcome["same"] == [True, 0.0, 1.0]
    # Another token from a tie is another text: what follows is not compared, but the tokens are not called equal.
    assert outcome["tie"] == [False, 0.00001, 1.0]
    assert "by 0.7 at sequence 0, step 2" in outcome["wrong"]
    assert "by nan" in outcome["nan"]
    # Plain torch drops nothing, so steps from the first drop on prove nothing.
    assert outcome["dropped at the wrong step"] == [True, 0.0, 0.667]
    assert outcome["dropped before it"] == [True, 0.0, 0.333]
    assert outcome["dropped at once"] == [None, 0.0, 0.0]
    assert outcome["nothing dropped"] == outcome["wrong"]
