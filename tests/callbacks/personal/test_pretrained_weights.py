"""Runs that begin with weights from a file."""

import hashlib
import json
import math

import pytest
import torch
from tiny import TinyClients, TinyModule
from torch import nn

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import PretrainedWeights
from lightning_fl.callbacks.personal.pretrained_weights import pretrained_state
from lightning_fl.core.errors import ConfigurationError


class Deep(TinyModule):
    """The tiny module with an encoder before its linear layer."""

    def __init__(self, width=3):
        super().__init__()
        torch.manual_seed(3)
        self.encoder = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 3))
        self.before = self.encoder


@pytest.fixture
def weights():
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).state_dict()


@pytest.fixture
def file(tmp_path, weights):
    torch.save(weights, tmp_path / "encoder.pt")
    return tmp_path / "encoder.pt"


class Net(nn.Module):
    """What an encoder stands in."""

    def __init__(self, width=3):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 3))


def fit(tmp_path, *callbacks, rounds=2, module=None, ckpt_path=None, **arguments):
    trainer = FederatedTrainer(
        max_rounds=rounds,
        local_steps=2,
        accelerator="cpu",
        devices=1,
        default_root_dir=str(tmp_path / "run"),
        enable_progress_bar=False,
        callbacks=list(callbacks),
        **arguments,
    )
    trainer.fit(module or Deep(), TinyClients(), ckpt_path=ckpt_path)
    return trainer


def state_of(trainer):
    return trainer.module.state_dict()


def at_encoder(trainer):
    return {name.removeprefix("encoder."): value for name, value in state_of(trainer).items() if "encoder." in name}


# What is read


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s, "hyper_parameters": {"width": 3}}])
@pytest.mark.parametrize("begin", ["", "encoder."])
def test_files_of_all_kinds(tmp_path, weights, wrap, begin):
    content = {begin + key: value for key, value in weights.items()}
    if begin:
        content["head.weight"] = torch.zeros(1)
    torch.save(wrap(content), tmp_path / "file.pt")
    found = pretrained_state(tmp_path / "file.pt", Net().encoder, "encoder")
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[key], weights[key]) for key in found)


def test_a_prefix(tmp_path, weights):
    torch.save({f"model.body.{key}": value for key, value in weights.items()}, tmp_path / "file.pt")
    found = pretrained_state(tmp_path / "file.pt", Net().encoder, "encoder", "model.body.")
    assert found.keys() == weights.keys()


# What it does


def test_a_run_begins_with_them(tmp_path, file, weights):
    trainer = fit(tmp_path, PretrainedWeights(path=str(file), freeze=True), rounds=1)
    assert all(torch.equal(value, weights[name]) for name, value in at_encoder(trainer).items())


def test_training_goes_on_from_them_as_from_a_module_that_had_them(tmp_path, file, weights):
    own = Deep()
    own.encoder.load_state_dict(weights)
    expected, found = fit(tmp_path / "a", module=own), fit(tmp_path / "b", PretrainedWeights(path=str(file)))
    assert all(torch.equal(state_of(expected)[name], value) for name, value in state_of(found).items())
    assert not torch.equal(at_encoder(found)["0.weight"], weights["0.weight"])


def test_frozen_weights_keep_their_bits_and_are_sent_once(tmp_path, file, weights):
    trainer = fit(tmp_path, PretrainedWeights(path=str(file), freeze=True), rounds=3)
    assert all(torch.equal(value, weights[name]) for name, value in at_encoder(trainer).items())
    assert not torch.equal(state_of(trainer)["linear.weight"], Deep().state_dict()["linear.weight"])
    frozen = sum(value.numel() * 4 for value in weights.values())
    others = 4 * (3 + 1)  # linear.weight and linear.bias
    # Each of three rounds: down and up once a client; the frozen part came once.
    assert trainer.communication.bytes_sent[0] == 3 * others
    assert trainer.communication.bytes_received[0] == frozen + 3 * others


def test_after_some_rounds_they_are_trained(tmp_path, file, weights):
    for rounds, same in ((2, True), (3, False)):
        trainer = fit(
            tmp_path / str(rounds), PretrainedWeights(path=str(file), freeze=True, unfreeze_after=2), rounds=rounds
        )
        assert torch.equal(at_encoder(trainer)["0.weight"], weights["0.weight"]) is same


@pytest.mark.parametrize("unfreeze_after", [None, 1, 3])
def test_a_resumed_run_needs_no_file_and_has_the_same_bits(tmp_path, file, unfreeze_after):
    def callback():
        return PretrainedWeights(path=str(file), freeze=True, unfreeze_after=unfreeze_after)

    whole, half = fit(tmp_path / "a", callback(), rounds=4), fit(tmp_path / "b", callback(), rounds=2)
    file.unlink()
    resumed = fit(tmp_path / "c", callback(), rounds=4, ckpt_path=f"{half.log_dir}/checkpoints/last.ckpt")
    assert all(torch.equal(state_of(whole)[name], value) for name, value in state_of(resumed).items())
    assert whole.communication.bytes_sent == resumed.communication.bytes_sent


def test_the_record_has_the_files_sum(tmp_path, file):
    trainer = fit(tmp_path, PretrainedWeights(path=str(file), freeze=True))
    with open(f"{trainer.log_dir}/summary.json") as stream:
        (record,) = json.load(stream)["pretrained"]
    expected = hashlib.sha256(file.read_bytes()).hexdigest()
    assert record == {"file": "encoder.pt", "sha256": expected, "module": "encoder", "freeze": True}


# What is refused


@pytest.mark.parametrize(
    ("width", "change", "message"),
    [
        (4, {}, r"does not fit encoder: .*0\.weight.*\[3, 3\].*\[4, 3\]"),
        (3, {"2.bias": None}, r"does not fit encoder: .*Missing.*2\.bias"),
        (3, {"4.weight": torch.zeros(1)}, r"does not fit encoder: .*Unexpected.*4\.weight"),
        (3, {"2.bias": torch.full((3,), float("nan"))}, r"2.bias'? .*finite"),
    ],
)
def test_other_weights_are_refused(tmp_path, weights, width, change, message):
    content = {key: value for key, value in (weights | change).items() if value is not None}
    torch.save(content, tmp_path / "file.pt")
    with pytest.raises(ConfigurationError, match=message):
        pretrained_state(tmp_path / "file.pt", Net(width).encoder, "encoder")


def test_weights_that_are_not_finite_leave_the_module_as_it_was(tmp_path, weights):
    torch.save(weights | {"2.bias": torch.full((3,), math.inf)}, tmp_path / "file.pt")
    part = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    before = {name: value.clone() for name, value in part.state_dict().items()}
    with pytest.raises(ConfigurationError, match="finite"):
        pretrained_state(tmp_path / "file.pt", part, "encoder")
    assert all(torch.equal(value, before[name]) for name, value in part.state_dict().items())


def test_what_is_left_out_of_torchs_message_is_marked(tmp_path):
    torch.save({f"{number}.weight": torch.zeros(2) for number in range(30)}, tmp_path / "file.pt")
    part = nn.Sequential(*(nn.Linear(3, 3) for _ in range(30)))
    with pytest.raises(ConfigurationError, match=r"0\.bias.*\.\.\., size mismatch for 0\.weight: .*and 25 more\. Give"):
        pretrained_state(tmp_path / "file.pt", part, "encoder")


def test_no_such_file(tmp_path):
    with pytest.raises(ConfigurationError, match=r"PretrainedWeights.path=.*nowhere.pt'"):
        fit(tmp_path, PretrainedWeights(path=str(tmp_path / "nowhere.pt")))


def test_no_such_part(tmp_path, file):
    with pytest.raises(ConfigurationError, match=r"PretrainedWeights.module='trunk'.*Deep"):
        fit(tmp_path, PretrainedWeights(path=str(file), module="trunk"))


def test_a_file_without_weights(tmp_path):
    torch.save({"a": 1}, tmp_path / "file.pt")
    with pytest.raises(ConfigurationError, match="state dict"):
        pretrained_state(tmp_path / "file.pt", Net().encoder, "encoder")


def test_a_damaged_file(tmp_path, file):
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ConfigurationError, match="damaged"):
        pretrained_state(file, Net().encoder, "encoder")
