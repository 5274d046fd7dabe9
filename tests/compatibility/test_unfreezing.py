"""Parameters that hooks freeze and unfreeze, and groups that they add to an optimiser."""

from pathlib import Path
from typing import Any

import pytest
import torch
from reference import (
    Clients,
    Linear,
    assert_same_weights,
    federated_trainer,
    fit_whole_and_resumed,
    fitted,
    leave_out,
    linear,
    make,
    train_both,
)
from torch import Tensor, nn

from lightning_fl.core.errors import TrainingError


class Backbone(Linear):
    """A frozen backbone and a head, which alone the optimiser has at first."""

    kind: Any = torch.optim.Adam
    settings: dict[str, Any] = {"lr": 0.05}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).requires_grad_(False)

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.net(self.backbone(x)), y)

    def configure_optimizers(self) -> Any:
        return self.kind(self.net.parameters(), **self.settings)

    def unfreeze(self, part: nn.Module, lr: float = 0.01) -> None:
        part.requires_grad_(True)
        self.optimizers().add_param_group({"params": list(part.parameters()), "lr": lr})


class AtAnEpoch(Backbone):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.unfreeze(self.backbone)


class FilteredAtAnEpoch(AtAnEpoch):
    def configure_optimizers(self) -> Any:
        return self.kind([one for one in self.parameters() if one.requires_grad], **self.settings)


class AtABatch(Backbone):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.current_epoch == 1 and batch_idx == 1:
            self.unfreeze(self.backbone)


class InTheStep(Backbone):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.current_epoch == 0 and batch_idx == 2:
            self.unfreeze(self.backbone)
        return self.loss(batch)


class LayerByLayer(Backbone):
    """Another layer in every epoch, the last one first; the rates fall."""

    def on_train_epoch_start(self) -> None:
        for group in self.optimizers().param_groups:
            group["lr"] *= 0.9
        if self.current_epoch in (1, 2):
            self.unfreeze(self.backbone[2 * (2 - self.current_epoch)])


class Refrozen(AtAnEpoch):
    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        if self.current_epoch == 2:
            self.backbone.requires_grad_(False)


class WithMomentum(AtAnEpoch):
    kind = torch.optim.SGD
    settings = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}  # noqa: RUF012


class Scheduled(AtAnEpoch):
    def configure_optimizers(self) -> Any:
        made = super().configure_optimizers()
        return [made], [torch.optim.lr_scheduler.StepLR(made, 1, 0.5)]


class OfAllParameters(AtAnEpoch):
    """The optimiser has the frozen ones from the beginning."""

    def configure_optimizers(self) -> Any:
        return self.kind(self.parameters(), **self.settings)

    def unfreeze(self, part: nn.Module, lr: float = 0.01) -> None:
        part.requires_grad_(True)


class InValidation(OfAllParameters):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def on_validation_epoch_end(self) -> None:
        if self.current_epoch == 0:
            self.unfreeze(self.backbone)


class AfterValidation(InValidation):
    on_validation_end = InValidation.on_validation_epoch_end
    on_validation_epoch_end = Backbone.on_validation_epoch_end


CASES = [
    AtAnEpoch,
    FilteredAtAnEpoch,
    AtABatch,
    InTheStep,
    LayerByLayer,
    Refrozen,
    WithMomentum,
    Scheduled,
    OfAllParameters,
    InValidation,
    AfterValidation,
]


@pytest.mark.slow
@pytest.mark.parametrize("module", CASES)
def test_as_under_lightnings_trainer(module: type[Backbone], tmp_path: Path) -> None:
    own, _, reference, _ = train_both(module, tmp_path, epochs=4)
    assert_same_weights(own, reference, atol=2**-46)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["keep", "fresh"])
@pytest.mark.parametrize("module", CASES)
def test_a_resumed_run_continues_with_the_groups(module: type[Backbone], state: Any, tmp_path: Path) -> None:
    (whole, _, second), _ = fit_whole_and_resumed(module, tmp_path, stop=True, optimizer_state=state)
    assert_same_weights(second, whole, moved=False)


def test_fresh_optimisers_go_on_training_what_was_added(tmp_path: Path) -> None:
    """SGD has no state, so that fresh optimisers are kept ones."""

    plain = linear("Plain", AtAnEpoch, kind=torch.optim.SGD)
    fresh, kept = make(plain), make(plain)
    for module, state in ((fresh, "fresh"), (kept, "keep")):
        federated_trainer(tmp_path, max_rounds=4, optimizer_state=state).fit(module, Clients((8, 12)))  # type: ignore[arg-type]
    assert_same_weights(fresh, kept, moved=False)


def test_every_client_has_its_own_groups(tmp_path: Path) -> None:
    """Client 1, away in the round in which the group is added, never gets it: in any order."""
    groups: dict[tuple[int, ...], list[Any]] = {}

    class Watches(AtAnEpoch):
        def on_train_epoch_end(self) -> None:
            count = len(self.trainer.optimizers[0].param_groups)
            groups[order].append((self.trainer.client, self.current_epoch, count))

    modules = {}
    for order in ((0, 1), (1, 0)):
        groups[order] = []
        modules[order] = make(Watches)
        cohorts = [list(order), [0], list(order)]
        fitted(tmp_path, modules[order], Clients((8, 8)), max_rounds=3, callbacks=[leave_out(cohorts)])
    assert sorted(groups[0, 1]) == sorted(groups[1, 0]) == [(0, 0, 1), (0, 1, 2), (0, 2, 2), (1, 0, 1), (1, 2, 1)]
    assert_same_weights(modules[0, 1], modules[1, 0], moved=False)


def test_what_one_client_unfreezes_is_trained_by_all_from_the_next_round(tmp_path: Path) -> None:
    seen: list[tuple[int, int, bool, bool]] = []

    class OneUnfreezes(OfAllParameters):
        def on_train_epoch_start(self) -> None:
            before = self.backbone[0].weight.requires_grad
            if self.trainer.client == 0 and self.current_epoch == 0:
                self.backbone.requires_grad_(True)
            seen.append((self.current_epoch, self.trainer.client, before, self.backbone[0].weight.requires_grad))

    federated_trainer(tmp_path, max_rounds=2).fit(make(OneUnfreezes), Clients((8, 8)))
    assert seen == [(0, 0, False, True), (0, 1, False, False), (1, 0, True, True), (1, 1, True, True)]


def test_what_one_clients_validation_unfreezes_is_trained_by_all(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int, bool]] = []

    class OneUnfreezes(InValidation):
        def note(self, where: str) -> None:
            seen.append((where, self.current_epoch, self.trainer.client, self.backbone[0].weight.requires_grad))

        def on_train_epoch_start(self) -> None:
            self.note("train")

        def on_validation_epoch_end(self) -> None:
            self.note("val")
            if self.trainer.client == 0:
                super().on_validation_epoch_end()

    trainer = federated_trainer(tmp_path, max_rounds=2)
    trainer.fit(make(OneUnfreezes), Clients((8, 8)))
    assert seen == [
        (where, epoch, client, epoch == 1) for epoch in (0, 1) for where in ("train", "val") for client in (0, 1)
    ]
    assert trainer.federation.trainable == {
        f"backbone.{part}": True for part in ("0.weight", "0.bias", "2.weight", "2.bias")
    }


def test_a_group_of_a_parameter_that_is_gone_is_named(tmp_path: Path) -> None:
    class Renames(AtAnEpoch):
        def configure_optimizers(self) -> Any:
            if self.current_epoch == 2:
                self.trunk = self.backbone
                del self.backbone
                self.forward = lambda x: self.net(self.trunk(x))  # type: ignore[method-assign]
            return super().configure_optimizers()

    with pytest.raises(TrainingError, match="'backbone.0.weight'"):
        federated_trainer(tmp_path, max_rounds=3).fit(make(Renames), Clients())
