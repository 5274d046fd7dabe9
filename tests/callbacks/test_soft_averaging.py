"""Soft averaging in a run: its matrices, its first parts, and what composes with it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tier_tiny import SIZES, MixedClients, fit

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import ClientArrivals, ModelCheckpoint, PersonalLayers, SoftAveraging
from lightning_fl.callbacks.soft_averaging import soft_collaboration
from lightning_fl.errors import ConfigurationError


def accuracy(run: FederatedTrainer, data: MixedClients, client: int, model: Any, split: str = "train") -> float:
    run.loop.flat.load(model)
    x, y = data.sets[client, split].tensors
    with torch.no_grad():
        return float((run.module(x).argmax(1) == y).double().mean())  # type: ignore[misc]


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=6), st.integers(1, 50))
def test_the_matrices_are_the_papers_weights(rows: list[list[float]], size: int) -> None:
    u = torch.tensor(rows, dtype=torch.float64)
    u /= u.sum(1, keepdim=True)
    samples = [size + i for i in range(len(rows))]
    found = soft_collaboration(u, samples)
    assert torch.equal(found.personalisation, u)
    for k in range(3):
        total = sum(float(u[j, k]) * samples[j] for j in range(len(rows)))
        expected = [float(u[i, k]) * samples[i] / total for i in range(len(rows))]
        assert found.aggregation[k].tolist() == pytest.approx(expected)


def test_a_model_of_no_use_is_the_average_of_all() -> None:
    found = soft_collaboration(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), [30, 10])
    assert found.aggregation.tolist() == [[0.75, 0.25], [0.75, 0.25]]


def test_one_model_is_fedavg_to_the_bit() -> None:
    soft, plain = fit(SoftAveraging(num_models=1)), fit()
    assert soft.models[0].equal(plain.models[0])


def test_clients_are_dealt_out_then_weigh_the_models_by_accuracy() -> None:
    data, soft = MixedClients(), SoftAveraging(num_models=2, num_samples=None)
    run = fit(soft, data=data, max_rounds=1)
    parts = fit(SoftAveraging(num_models=2), max_rounds=1)
    assert not run.models[0].equal(run.models[1])
    assert parts.models[0].equal(run.models[0])
    scores = torch.tensor([[accuracy(run, data, i, model) for model in run.models] for i in range(6)])
    expected = scores.double() / scores.double().sum(1, keepdim=True)
    torch.testing.assert_close(soft.importance[0], expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(run.collaboration.personalisation, expected, rtol=1e-6, atol=1e-9)
    weights = expected.T * torch.tensor(SIZES)
    torch.testing.assert_close(
        run.collaboration.aggregation, weights / weights.sum(1, keepdim=True), rtol=1e-6, atol=1e-9
    )


def test_estimates_are_made_every_n_rounds() -> None:
    soft = SoftAveraging(num_models=2, every_n_rounds=2)
    run = fit(soft, max_rounds=4)
    assert soft.rounds == [1, 3]
    assert torch.equal(run.collaboration.personalisation, soft.importance[-1])


def test_it_resumes_to_the_same_bits_and_composes(tmp_path: Path) -> None:
    def go(root: str, rounds: int, ckpt: Any = None) -> FederatedTrainer:
        callbacks = [
            SoftAveraging(num_models=2, num_samples=5),
            PersonalLayers(layers=["linear.bias"]),
            ClientArrivals(rounds={"client_2": 2, "client_5": 4}),
            ModelCheckpoint(every_n_rounds=1),
        ]
        settings = {"max_rounds": rounds, "enable_checkpointing": True, "default_root_dir": tmp_path / root}
        return fit(*callbacks, ckpt=ckpt, **settings)

    whole, part = go("whole", 5), go("part", 3)
    rest = go("part", 5, ckpt=Path(part.log_dir) / "checkpoints" / "last.ckpt")
    assert all(a.equal(b) for a, b in zip(whole.models, rest.models, strict=True))
    assert whole.collaboration == rest.collaboration
    soft = [run.callbacks[1] for run in (whole, rest)]
    assert all(torch.equal(a, b) for a, b in zip(soft[0].importance, soft[1].importance, strict=True))  # type: ignore[attr-defined]


def test_what_makes_no_sense_is_refused() -> None:
    for name in ("num_models", "every_n_rounds", "num_samples"):
        with pytest.raises(ConfigurationError, match=f"SoftAveraging.{name}=0: give a number of at least 1"):
            SoftAveraging(**{"num_models": 2, name: 0})
    with pytest.raises(ConfigurationError, match="SoftAveraging.split='test': choose train or val"):
        SoftAveraging(num_models=2, split="test")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="SoftAveraging.num_models=7 for 6 clients"):
        fit(SoftAveraging(num_models=7))
    with pytest.raises(ConfigurationError, match=r"split='val': 4 of 6 clients have no .* is client_1\)"):
        fit(SoftAveraging(num_models=2, split="val"), data=MixedClients(with_val={0, 4}))
