"""Steps take what Lightning gives them: the batch and its index, by their places."""

from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import Clients, Linear, assert_same_weights, federated_trainer, linear, train_both
from torch import Tensor


def _keyword_only(self: Any, batch: Any, *, temperature: float = 2.0) -> Tensor:
    return temperature * self.loss(batch)


def _keyword_only_after_index(self: Any, batch: Any, index: int, *, temperature: float = 2.0) -> Tensor:
    return (temperature + index) * self.loss(batch)


def _any_keywords(self: Any, batch: Any, **kwargs: Any) -> Tensor:
    assert not kwargs
    return self.loss(batch)


def _any_arguments(self: Any, *args: Any, **kwargs: Any) -> Tensor:
    batch, index = args
    return (1 + index) * self.loss(batch)


def _index_with_default(self: Any, batch: Any, batch_idx: int = 100) -> Tensor:
    return (1 + batch_idx) * self.loss(batch)


def _batch_only(self: Any, batch: Any) -> Tensor:
    return self.loss(batch)


@wraps(_batch_only)
def _decorated(self: Any, *args: Any) -> Tensor:
    return 2 * _batch_only(self, *args)


class Partial(Linear):
    """A step of an object, whose last argument is given."""

    def __init__(self) -> None:
        super().__init__()
        self.training_step = partial(self.weighted, weight=3.0)  # type: ignore[method-assign]

    def weighted(self, batch: Any, batch_idx: int, weight: float) -> Tensor:
        return (weight + batch_idx) * self.loss(batch)


def _compile_step(self: Any) -> None:
    self.training_step = torch.compile(self.training_step, backend="eager")


_STEPS = (
    _keyword_only,
    _keyword_only_after_index,
    _any_keywords,
    _any_arguments,
    _index_with_default,
    _batch_only,
    _decorated,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        *(pytest.param(linear(training_step=one), id=one.__name__) for one in _STEPS),
        Partial,
        pytest.param(linear(build=_compile_step), id="compiled"),
    ],
)
def test_training_steps(module: type[Linear], tmp_path: Path) -> None:
    own, _, reference, _ = train_both(module, tmp_path, epochs=2)
    assert_same_weights(own, reference)


@pytest.mark.parametrize("word", ["validation", "test", "predict"])
def test_evaluation_steps_with_keywords(word: str, tmp_path: Path) -> None:
    class Evaluates(Linear):
        seen: list[int] = []  # noqa: RUF012

        def _step(self, batch: Any, *, scale: float = 1.0) -> Tensor:
            self.seen.append(len(batch[0]))
            return scale * self.loss(batch)

    setattr(Evaluates, f"{word}_step", Evaluates._step)
    trainer = federated_trainer(tmp_path, max_rounds=1)
    getattr(trainer, {"validation": "validate"}.get(word, word))(Evaluates(), Clients())
    assert Evaluates.seen == [4, 1]
