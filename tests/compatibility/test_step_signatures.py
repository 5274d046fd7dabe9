"""Steps take what Lightning gives them: the batch and its index, by their places."""

from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import Clients, Linear, assert_same_weights, federated_trainer, train_both
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError


class KeywordOnly(Linear):
    def training_step(self, batch: Any, *, temperature: float = 2.0) -> Tensor:
        return temperature * self.loss(batch)


class KeywordOnlyAfterIndex(Linear):
    def training_step(self, batch: Any, index: int, *, temperature: float = 2.0) -> Tensor:
        return (temperature + index) * self.loss(batch)


class AnyKeywords(Linear):
    def training_step(self, batch: Any, **kwargs: Any) -> Tensor:
        assert not kwargs
        return self.loss(batch)


class AnyArguments(Linear):
    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        batch, index = args
        return (1 + index) * self.loss(batch)


class IndexWithDefault(Linear):
    def training_step(self, batch: Any, batch_idx: int = 100) -> Tensor:
        return (1 + batch_idx) * self.loss(batch)


def _doubled(step: Any) -> Any:
    @wraps(step)
    def run(self: Any, *args: Any) -> Tensor:
        return 2 * step(self, *args)

    return run


class Decorated(Linear):
    @_doubled
    def training_step(self, batch: Any) -> Tensor:
        return self.loss(batch)


class Partial(Linear):
    """A step of an object, whose last argument is given."""

    def __init__(self) -> None:
        super().__init__()
        self.training_step = partial(self.weighted, weight=3.0)  # type: ignore[method-assign]

    def weighted(self, batch: Any, batch_idx: int, weight: float) -> Tensor:
        return (weight + batch_idx) * self.loss(batch)


class CompiledStep(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.training_step = torch.compile(self.training_step, backend="eager")  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        KeywordOnly,
        KeywordOnlyAfterIndex,
        AnyKeywords,
        AnyArguments,
        IndexWithDefault,
        Decorated,
        Partial,
        CompiledStep,
    ],
)
def test_training_steps(module: type[Linear], tmp_path: Path) -> None:
    own, _, reference, _ = train_both(module, tmp_path, epochs=2)
    assert_same_weights(own, reference, atol=2**-46)


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


def test_an_argument_by_name_only_is_refused(tmp_path: Path) -> None:
    class Needs(Linear):
        def training_step(self, batch: Any, *, temperature: float) -> Tensor:  # type: ignore[override]
            return temperature * self.loss(batch)

    with pytest.raises(ConfigurationError, match="Needs.training_step .*temperature"):
        federated_trainer(tmp_path, max_rounds=1).fit(Needs(), Clients())
