import pytest
import torch
from small_models import plain_trainer, silence
from torch.utils.data import DataLoader, TensorDataset

from lightning_fl import FederatedDataModule, FederatedTrainer
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.models import ClassificationModel

NAN = float("nan")
SHAPE, CLASSES = [1, 6, 5], 3

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step`", "ignore:.*does not have many workers")


def make_model(seed=0, **arguments):
    torch.manual_seed(seed)
    defaults = {"network": "mlp", "in_shape": SHAPE, "num_classes": CLASSES, "hidden_sizes": [16]}
    return ClassificationModel(**(defaults | arguments))


def samples(count, seed=0, shape=SHAPE):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % CLASSES
    return torch.randn(count, *shape, generator=generator) + y.view(-1, *[1] * len(shape)), y


class Clients(FederatedDataModule):
    def __init__(self, sizes=(12, 20), batch_size=8, **arguments):
        super().__init__(batch_size=batch_size)
        self.sizes, self.arguments = sizes, arguments

    @property
    def num_clients(self):
        return len(self.sizes)

    def client_sizes(self):
        return self.sizes

    def client_data(self, client, split):
        return TensorDataset(*samples(self.sizes[client], seed=client, **self.arguments))


def federated_trainer(tmp_path, **arguments):
    return FederatedTrainer(default_root_dir=tmp_path, accelerator="cpu", **arguments)


# What is computed


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_training_loss_by_hand(smoothing):
    model = silence(make_model(label_smoothing=smoothing))
    x, y = samples(7)
    log_probabilities = model(x) - model(x).exp().sum(1, keepdim=True).log()
    target = (1 - smoothing) * torch.eye(CLASSES)[y] + smoothing / CLASSES
    torch.testing.assert_close(model.training_step((x, y), 0), -(target * log_probabilities).sum(1).mean())


def test_evaluation_is_over_the_samples_of_all_batches():
    model = make_model(label_smoothing=0.3)  # which changes the training loss only
    x, y = samples(10)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    with torch.no_grad():
        probabilities = model(x).softmax(1)
    expected_loss = -probabilities[torch.arange(10), y].log().mean().item()
    expected_acc = (probabilities.argmax(1) == y).float().mean().item()
    trainer = plain_trainer()
    val, test = trainer.validate(model, loader, verbose=False)[0], trainer.test(model, loader, verbose=False)[0]
    assert val == {"val/loss": pytest.approx(expected_loss), "val/acc": pytest.approx(expected_acc)}
    assert test == {"test/loss": pytest.approx(expected_loss), "test/acc": pytest.approx(expected_acc)}


def test_predictions_are_probabilities():
    model = make_model().eval()
    x, y = samples(5)
    expected = model(x).exp() / model(x).exp().sum(1, keepdim=True)
    for batch in ((x, y), [x], x):
        torch.testing.assert_close(model.predict_step(batch, 0), expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_labels_of_any_integer_type(dtype):
    model, (x, y) = silence(make_model()), samples(6)
    torch.testing.assert_close(model.training_step((x, y.to(dtype)), 0), model.training_step((x, y), 0))


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.9), ("adam", 0.0)])
def test_the_optimiser_is_the_one_asked_for(optimizer, momentum):
    found = make_model(optimizer=optimizer, momentum=momentum, learning_rate=0.2, weight_decay=0.1)
    settings = found.configure_optimizers()
    assert type(settings).__name__.lower() == optimizer
    assert (settings.defaults["lr"], settings.defaults["weight_decay"]) == (0.2, 0.1)
    assert settings.defaults.get("momentum", 0.0) == momentum
    assert len(settings.param_groups[0]["params"]) == len(list(found.parameters()))


# Training


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "shape"),
    [("mlp", [4]), ("lenet5", [1, 16, 16]), ("cnn3", [3, 8, 8]), ("cnn4", [1, 8, 8]), ("cnn5", [3, 18, 18])],
)
def test_a_tiny_set_is_learned_by_heart(network, shape):
    x, y = samples(18, shape=shape)
    y = y[torch.randperm(18, generator=torch.Generator().manual_seed(0))]  # nothing but memory helps
    model = make_model(network=network, in_shape=shape, hidden_sizes=[32], optimizer="adam")
    plain_trainer(max_epochs=60).fit(model, DataLoader(TensorDataset(x, y), batch_size=18))
    assert (model.eval()(x).argmax(1) == y).float().mean() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("network", ["mlp", "cnn3"])
def test_bf16_mixed_is_close_to_full_precision(network):
    x, y = samples(16, shape=[1, 8, 8])
    found = []
    for precision in ("32-true", "bf16-mixed"):
        model = make_model(network=network, in_shape=[1, 8, 8])
        trainer = plain_trainer(max_epochs=2, precision=precision)
        loader = DataLoader(TensorDataset(x, y), batch_size=8)
        trainer.fit(model, loader, loader)
        found.append(trainer.predict(model, loader)[0])
    assert found[1].dtype == torch.float32
    torch.testing.assert_close(*found, atol=0.05, rtol=0)


def test_a_federated_run(tmp_path):
    model = make_model(learning_rate=0.1)
    trainer = federated_trainer(tmp_path, max_rounds=6)
    trainer.fit(model, Clients())
    metrics = trainer.test(model, Clients())
    assert set(metrics) == {"test/loss", "test/acc"}
    assert metrics["test/acc"].higher_is_better
    assert not metrics["test/loss"].higher_is_better
    assert metrics["test/acc"].worst > 0.6
    assert set(metrics["test/acc"].clients) == {0, 1}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"class_names": ["bear", "cat", "dog", "fox"]}, "num_classes=3: .*4 classes, bear, cat, dog, fox"),
        ({"image_shape": (1, 9, 9)}, r"in_shape=.*\[1, 9, 9\]"),
    ],
)
def test_what_the_data_tell_is_compared_before_training(tmp_path, told, message):
    model, data = make_model(), Clients()
    for name, value in told.items():
        setattr(data, name, value)
    trainer = federated_trainer(tmp_path, max_rounds=1)
    with pytest.raises(ConfigurationError, match=message):
        trainer.fit(model, data)
    assert trainer.current_round == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"network": "cnn3", "in_shape": [1, 8, 8]},
        {"network": "lenet5", "in_shape": [1, 16, 16], "channels": [2, 3]},
    ],
)
def test_checkpoint_round_trip(arguments, tmp_path):
    model = make_model(**arguments)
    x, y = samples(8, shape=arguments.get("in_shape", SHAPE))
    trainer = plain_trainer(max_epochs=2, enable_checkpointing=True, default_root_dir=tmp_path)
    trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=4))
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    loaded = ClassificationModel.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    assert torch.equal(loaded.eval()(x), model.eval()(x))
    assert dict(loaded.hparams) == dict(model.hparams)
