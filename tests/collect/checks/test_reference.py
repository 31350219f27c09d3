from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tracewarehouse.collect.checks.plain_model import PlainModel
from tracewarehouse.collect.checks.reference import Expected, compare, require_finite, tolerance_of
from tracewarehouse.collect.errors import CheckError
from tracewarehouse.collect.models.architectures import tiny_model
from tracewarehouse.collect.models.form import model_form
from tracewarehouse.collect.parallel.weights import RandomWeights

# One sequence, three steps, three tokens: token 2, then a near tie of 0 and 1, then token 1.
EXPECTED = np.array([[[0.0, 0.1, 0.9], [0.50001, 0.5, 0.1], [0.2, 0.8, 0.1]]], np.float32)


def changed(*steps: tuple[int, list[float]]) -> Any:
    """The expected logits with other ones in some steps."""
    out = EXPECTED.copy()
    for step, logits in steps:
        out[0, step] = logits
    return out


LAYERS = 128
"""Of which the tolerance in bfloat16 is 0.1."""
WRONG = changed((2, [0.9, 0.8, 0.1]))


def outcome(
    logits: Any, dropped: list[int] | None = None, ties: tuple[float, ...] = (0, 0, 0), precision: str = "float32"
) -> list[Any]:
    pairs = None if dropped is None else np.array([dropped])
    agreement = compare(logits, Expected(EXPECTED, np.array([ties])), precision, LAYERS, pairs)
    return [agreement.tokens_equal, round(agreement.max_logit_error, 6), round(agreement.comparable_share, 3)]


def test_a_difference_is_an_error_unless_rounding_explains_it() -> None:
    assert outcome(EXPECTED) == [True, 0.0, 1.0]
    # Another token from a tie is another text: what follows is not compared, but the tokens are not called equal.
    assert outcome(changed((1, [0.5, 0.50001, 0.1]), (2, [9.0, 0.0, 0.0]))) == [False, 0.00001, 1.0]
    with pytest.raises(CheckError, match=r"by 0\.7 at sequence 0, step 2"):
        outcome(WRONG)
    with pytest.raises(CheckError, match=r"by nan"):
        outcome(changed((0, [np.nan, 0.1, 0.9])))


def test_steps_from_the_first_drop_on_prove_nothing() -> None:
    assert outcome(WRONG, [0, 0, 3]) == [True, 0.0, 0.667]
    assert outcome(WRONG, [0, 1, 0]) == [True, 0.0, 0.333]
    assert outcome(WRONG, [2, 0, 0]) == [None, 0.0, 0.0]
    with pytest.raises(CheckError, match=r"by 0\.7"):
        outcome(WRONG, [0, 0, 0])


def test_a_step_is_not_compared_where_a_tie_between_experts_explains_its_difference() -> None:
    tied = partial(outcome, precision="bfloat16")
    # By 0.7 and another token at the last step, where ties change 0.06 or more; 0.05 is half of the tolerance.
    assert tied(WRONG, ties=(0, 0, 0.06)) == [True, 0.0, 0.667]
    assert tied(WRONG, [0, 0, 0], ties=(0, 0, 0.06)) == [True, 0.0, 0.667]
    for ties in ((0.0, 0.0, 0.04), (0.9, 0.9, 0.0)):
        with pytest.raises(CheckError, match=r"by 0\.7 at sequence 0, step 2"):
            tied(WRONG, ties=ties)
    with pytest.raises(CheckError, match=r"by 0\.7"):
        outcome(WRONG, ties=(0, 0, 0.06))  # float32 rounds too little
    with pytest.raises(CheckError, match=r"by nan"):
        tied(changed((0, [np.nan, 0.1, 0.9])), ties=(9, 9, 9))

    # The same token in spite of the tie: the steps behind it are compared. Another one: they are of another text.
    early = [0.0, 0.8, 0.9]
    assert tied(changed((0, early)), ties=(0.2, 0, 0)) == [True, 0.0, 0.667]
    with pytest.raises(CheckError, match=r"by 0\.7 at sequence 0, step 2"):
        tied(changed((0, early), (2, [0.9, 0.8, 0.1])), ties=(0.2, 0, 0))
    assert tied(changed((0, early[::-1]), (2, [9.0, 0.0, 0.0])), ties=(0.2, 0, 0)) == [None, 0.0, 0.0]
    # A difference within the tolerance is compared, whatever ties there are.
    assert tied(changed((0, [0.0, 0.15, 0.9])), ties=(0.2, 0.2, 0.2)) == [True, 0.05, 1.0]


class SeesOneAhead(PlainModel):
    """Its mask shows each token of the prompt the next one."""

    def _attended(self, query: Any, keys: Any, values: Any, is_seen: Any, scaling: float) -> Any:
        ahead = is_seen | np.eye(*is_seen.shape, 1, dtype=bool)
        return super()._attended(query, keys, values, ahead, scaling)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("llama", 2), ("deepseek_v2", 2), ("qwen3", 8), pytest.param("llama", 80, marks=pytest.mark.slow)],
)
def test_rounding_is_within_the_tolerance_and_a_wrong_model_is_not(name: str, layers: int) -> None:
    """The model in bfloat16 beside itself in float32, with a mask that shows too much, and with one wrong token."""
    pytest.importorskip("ml_dtypes")
    model = tiny_model(name, layers)
    form, random = model_form(model, layers), RandomWeights(model, layers, 0)
    weights = {each: random.whole(each, "bfloat16") for each in random.names()}
    prompt = np.random.default_rng(1).integers(0, model.config["vocab_size"], (4, 32))
    wrong = prompt.copy()
    wrong[:, 5] = (wrong[:, 5] + 1) % model.config["vocab_size"]
    right, *others = (
        kind(form, given).generate(tokens, 1)[0]
        for kind, given, tokens in (
            (PlainModel, weights, prompt),
            (PlainModel, {n: w.astype(np.float32) for n, w in weights.items()}, prompt),
            (SeesOneAhead, weights, prompt),
            (PlainModel, weights, wrong),
        )
    )
    rounded, masked, changed_token = (float(np.abs(other - right).max()) for other in others)
    tolerance = tolerance_of("bfloat16", layers, float(np.abs(right).max()))
    assert 2 * rounded < tolerance < min(masked, changed_token)


def test_logits_that_are_not_finite_are_placed() -> None:
    require_finite(EXPECTED)
    with pytest.raises(CheckError, match=r"2 of 3 steps gave .* the first at sequence 0, step 1"):
        require_finite(changed((1, [np.inf, 0.0, 0.0]), (2, [np.nan, 0.0, 0.0])))
