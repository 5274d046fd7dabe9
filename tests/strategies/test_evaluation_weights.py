"""What clients are evaluated with: fine-tuned before each evaluation, adapted, mixed; and what is exported of it."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from observers import AfterRounds
from parabolas import CURVES, RATE, OneWeight, TwoParabolas, Watched, number, trainer
from tiny import TinyClients, TinyModule, digest, with_optimizer

from lightning_fl import FederatedTrainer, TrainingError
from lightning_fl.callbacks import (
    IFCA,
    BestClientModels,
    CollaborationGraph,
    FedSoft,
    FineTuning,
    LocalTraining,
    ModelCheckpoint,
    PersonalLayers,
    PFedGraph,
    SoftAveraging,
)
from lightning_fl.strategies import APFL, Ditto, FedAvg, FedRep, PerFedAvg, PFedMe


def tuned(w: float, client: int, steps: int = 2) -> float:
    curvature, centre = CURVES[client]
    return centre + (w - centre) * (1 - RATE * curvature) ** steps


def test_before_every_evaluation_and_thrown_away() -> None:
    watched = Watched()
    run = trainer(watched, FineTuning(steps=2, every_evaluation=True), max_rounds=3)
    run.fit(OneWeight(), TwoParabolas())
    plain = Watched()
    trainer(plain, max_rounds=3).fit(OneWeight(), TwoParabolas())
    assert watched.weights == plain.weights  # to the bit
    for client, (curvature, centre) in enumerate(CURVES):
        own = tuned(watched.weights[-1], client)
        assert number(run.client_model(client)) == pytest.approx(own, rel=1e-12)
        found = run.metrics["val"]["val_loss"].clients[client]
        assert found == pytest.approx(curvature / 2 * (own - centre) ** 2, rel=1e-12)


@pytest.mark.parametrize("work", [{"local_steps": 3}, {"local_steps": None, "local_epochs": 3}])
def test_twice_the_local_work_by_default(work: dict[str, Any]) -> None:
    """An epoch is one batch."""
    run = trainer(FineTuning(every_evaluation=True), max_rounds=1, **work)
    run.fit(OneWeight(), TwoParabolas())
    for client in (0, 1):
        expected = tuned(number(run.models[0]), client, steps=6)
        assert number(run.client_model(client)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        (FedAvg, list),
        (FedAvg, lambda: [CollaborationGraph(budget=2)]),
        (FedAvg, lambda: [BestClientModels()]),
        (Ditto, list),
    ],
)
def test_training_knows_nothing_of_it(strategy: type[FedAvg], more: Any, tmp_path: Path) -> None:
    """With dropout, BatchNorm, momentum that is kept and personal layers."""

    heavy = with_optimizer(TinyModule, partial(torch.optim.SGD, lr=0.05, momentum=0.9))
    runs = []
    for extra in ([FineTuning(steps=2, every_evaluation=True)], []):
        run = trainer(
            *more(),
            *extra,
            PersonalLayers(layers=["linear.bias"]),
            strategy=strategy(),
            max_rounds=3,
            optimizer_state="keep",
            root=tmp_path,
        )
        run.fit(heavy(dropout=0.3, norm=True), TinyClients())
        runs.append(run)
    tuned_run, plain = runs
    assert [digest(model) for model in tuned_run.models] == [digest(model) for model in plain.models]
    assert tuned_run.metrics["train"] == plain.metrics["train"]
    assert tuned_run.metrics["val"] != plain.metrics["val"]


def test_a_fine_tuning_that_fails_ends_the_run_or_is_left_out() -> None:
    """At this rate the steps of the second client overshoot more and more."""
    settings: dict[str, Any] = {"max_rounds": 1, "local_steps": 1}
    with pytest.raises(TrainingError, match=r"fine-tuning of client 1 \(client_1\) failed: .*Lower the learning rate"):
        trainer(FineTuning(steps=600, every_evaluation=True), **settings).fit(OneWeight(rate=0.99), TwoParabolas())
    run = trainer(FineTuning(steps=600, every_evaluation=True), on_client_error="skip", **settings)
    with pytest.warns(UserWarning, match=r"fine-tuning of client 1 .* failed: .* It is evaluated without"):
        run.fit(OneWeight(rate=0.99), TwoParabolas())
    with pytest.warns(UserWarning, match="evaluated without"):
        assert number(run.client_model(1)) == number(run.models[0])
    assert number(run.client_model(0)) == pytest.approx(2.0)


@pytest.mark.parametrize("strategy", [FedAvg, Ditto, APFL])
def test_at_the_end_what_clients_used_in_the_best_round_is_fine_tuned(strategy: type[FedAvg], tmp_path: Path) -> None:
    """Own models of the strategy, too. Its last round is made the worst by a rate that is too high."""

    class Overshoots(OneWeight):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1 if self.trainer.current_epoch != 2 else 1.5)

    own = AfterRounds(lambda run: [number(run.client_model(client)) for client in (0, 1)])
    checkpoint = ModelCheckpoint(every_n_rounds=1)
    run = trainer(
        own,
        FineTuning(steps=2),
        checkpoint,
        strategy=strategy(),
        max_rounds=3,
        root=tmp_path,
        enable_checkpointing=True,
    )
    run.fit(Overshoots(), TwoParabolas())
    assert checkpoint.best_round == 2
    for client, before in enumerate(own.found[1]):
        curvature, centre = CURVES[client]
        rate = run.module.configure_optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
        expected = centre + (before - centre) * (1 - rate * curvature) ** 2
        assert number(run.client_model(client)) == pytest.approx(expected, rel=1e-9)


# -- what is exported --------------------------------------------------------------------------------------------------

WAYS: dict[str, tuple[Any, Any, str]] = {
    "FedAvg": (FedAvg, list, "the shared model"),
    "fine-tuned": (
        FedAvg,
        lambda: [FineTuning(steps=2, every_evaluation=True)],
        "the shared model, fine-tuned by 2 steps",
    ),
    "fine-tuned at the end": (FedAvg, lambda: [FineTuning(epochs=1)], "the shared model, fine-tuned by 1 epoch"),
    "Ditto": (Ditto, list, "each client's own model, trained alongside the shared model"),
    "APFL": (APFL, list, "each client's mixture of a model of its own and the shared model"),
    "PerFedAvg": (lambda: PerFedAvg(adaptation_rate=0.05), list, "the shared model, adapted by 1 step"),
    "PFedMe": (lambda: PFedMe(strength=1.0), list, "each client's own model, near the shared model"),
    "FedRep": (
        lambda: FedRep(head_epochs=1),
        lambda: [PersonalLayers(layers=["linear"])],
        "the shared model, with each client's own layers",
    ),
    "FedBN": (
        FedAvg,
        lambda: [PersonalLayers(layers="normalization")],
        "the shared model, with each client's own layers",
    ),
    "DPFL": (
        FedAvg,
        lambda: [CollaborationGraph(budget=2), BestClientModels()],
        "each client's own model, of its best round",
    ),
    "pFedGraph": (FedAvg, lambda: [PFedGraph()], "each client's own model"),
    "FedSoft": (FedAvg, lambda: [FedSoft(num_models=2, lam=0.1)], "each client's own model"),
    "SoftAveraging": (FedAvg, lambda: [SoftAveraging(num_models=2)], "each client's mixture of the shared models"),
    "IFCA": (FedAvg, lambda: [IFCA(num_clusters=2)], "the model of each client's coalition"),
    "LocalTraining": (FedAvg, lambda: [LocalTraining()], "each client's own model"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_exported_models_predict_in_plain_lightning_what_was_tested(way: str, tmp_path: Path) -> None:
    """Also after training has gone on from a better round, and in a run that only tests."""
    strategy, callbacks, words = WAYS[way]

    def make() -> FederatedTrainer:
        checkpoint = ModelCheckpoint(every_n_rounds=1, monitor="val_loss")
        return trainer(
            *callbacks(), checkpoint, strategy=strategy(), max_rounds=3, root=tmp_path, enable_checkpointing=True
        )

    run, data = make(), TinyClients()
    module = TinyModule(norm=True)
    run.fit(module, data)
    tested = run.test(module, data, ckpt_path=run.trained_checkpoint)["test_loss"].clients
    assert json.loads((Path(run.log_dir) / "summary.json").read_text())["evaluated"] == words
    final = way in ("fine-tuned at the end", "DPFL")
    checkpoints = Path(run.log_dir) / "checkpoints"
    for name, expected in (("last", words), ("best", re.split(", (?:fine|of)", words)[0] if final else words)):
        again = make()
        again.test(module, data, ckpt_path=checkpoints / f"{name}.ckpt")
        assert again.evaluated_model == expected
    files = sorted((Path(run.log_dir) / "models").glob("client_*.ckpt"))
    assert len(files) == len(tested) == 3
    for client, file in enumerate(files):
        plain = TinyModule(norm=True)
        plain.load_state_dict(torch.load(file, weights_only=True)["state_dict"])
        plain.eval()
        with torch.no_grad():
            x, y = data.client_data(client, "test").tensors
            assert tested[client] == pytest.approx(float(torch.nn.functional.mse_loss(plain(x), y)), rel=1e-5)
