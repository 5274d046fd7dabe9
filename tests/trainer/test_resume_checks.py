"""A checkpoint knows its run: what does not fit is refused, what differs is said, before anything is trained."""

import copy
import json
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from algorithm_run import callbacks, settings
from tiny import TinyClients, TinyModule, quiet_trainer
from torch import nn

from lightning_fl import CheckpointError, ConfigurationError, FederatedTrainer
from lightning_fl.callbacks import (
    HCCT,
    Callback,
    DiscriminatorSettings,
    FedCollab,
    LabelNoise,
    LearningCurves,
    LocalMixup,
    ModelCheckpoint,
    PersonalLayers,
    UniformSampling,
)
from lightning_fl.runtime.checkpoint_fields import plain_hyper_parameters

#: What another field of a checkpoint leads to: name, value (``...``: it is not there), words of the refusal.
FAULTS: list[tuple[tuple[str, ...], Any, str]] = [
    (("num_clients",), ..., "has no field 'num_clients'"),
    (("models",), ..., "has no field 'models'"),
    (("callbacks",), ..., "has no field 'callbacks'"),
    (("models",), [], "its field 'models'"),
    (("models",), [{"float32": "x"}], "its field 'models'"),
    (("models",), [{"float32": torch.zeros(1).expand(10**12)}], "its field 'models'"),
    (("round",), -1, "its field 'round'"),
    (("seed",), "1", "its field 'seed'"),
    (("collaboration", "personalisation"), torch.ones(1, 1).double(), "its field 'collaboration'"),
    (("collaboration", "aggregation"), 3, "its field 'collaboration'"),
    (("clients",), {0: {"speed": 1}}, "its field 'clients'"),
    (("clients",), {7: {}}, "its field 'clients' has client 7 of 3"),
    (("client_stores",), {"a": [1]}, "its field 'client_stores'"),
    (("layout",), [("a", "float32", 10**9, [3])], "its field 'layout'"),
    (("client_files",), {"name": "../last", "token": ""}, "its field 'client_files'"),
    (("communication",), {"bytes_sent": {0: "x"}}, "its field 'communication'"),
    (("measured",), [], "its field 'measured'"),
    (("measured", "metrics"), {"val": {"clients": [], "of": {"loss": {}}}}, "its field 'measured'"),
    (("measured", "gains"), {"val": {"loss": 1.0}}, "its field 'measured'"),
    (("measured", "evaluated_samples"), {"val": {0: "x"}}, "its field 'measured'"),
    (("record",), 3, "its field 'record'"),
    (("record",), {"unwritten": [3]}, "its field 'record'"),
    (("callbacks", "DROClientSampling"), {}, "last.ckpt: the checkpoint's state of DROClientSampling was saved"),
    (("communication",), {"bytes_sent": {}}, "last.ckpt: the checkpoint's state of its models and clients was saved"),
]


def trainer(root: Path, rounds: int = 2, extra: Any = (), **more: Any) -> FederatedTrainer:
    kept = [*callbacks(), *extra, ModelCheckpoint(every_n_rounds=1)]
    return FederatedTrainer(**{**settings(str(root), rounds), "callbacks": kept, "logger": False, **more})


def module(**more: Any) -> TinyModule:
    return TinyModule(**{"dropout": 0.2, "norm": True, **more})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = trainer(tmp_path_factory.mktemp("finished"))
    run.fit(module(), TinyClients())
    return torch.load(Path(run.log_dir) / "checkpoints" / "last.ckpt", weights_only=True)


@pytest.fixture
def last(finished: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "last.ckpt"
    torch.save(finished, path)
    return path


def change(path: Path, keys: tuple[str, ...], value: Any) -> None:
    state = copy.deepcopy(torch.load(path, weights_only=True))
    owner = state
    for key in keys[:-1]:
        owner = owner[key]
    if value is ...:
        del owner[keys[-1]]
    else:
        owner[keys[-1]] = value
    torch.save(state, path)


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "value", "words"), FAULTS)
def test_a_field_that_is_missing_or_of_another_kind_is_named(
    keys: tuple[str, ...], value: Any, words: str, last: Path, tmp_path: Path
) -> None:
    change(last, keys, value)
    with pytest.raises(CheckpointError) as caught:
        trainer(tmp_path).fit(module(), TinyClients(), ckpt_path=last)
    assert str(caught.value).startswith(last.name)
    assert words in str(caught.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_the_file_s(value: float, last: Path, tmp_path: Path) -> None:
    model = torch.load(last, weights_only=True)["models"][0]
    model["float32"][0] = value
    change(last, ("models",), [model])
    for call in (FederatedTrainer.fit, FederatedTrainer.test):
        with pytest.raises(CheckpointError, match=r"last.ckpt: the weights of '.+' in its model 0 are not finite"):
            call(trainer(tmp_path), module(), TinyClients(), ckpt_path=last)


def test_a_checkpoint_of_before_differs_in_nothing_that_it_does_not_know(last: Path, tmp_path: Path) -> None:
    for name in ("recipe", "data", "client_names", "layout", "trainable", "absent_clients"):
        change(last, (name,), ...)
    run = trainer(tmp_path, 3)
    run.fit(module(learning_rate=0.01), TinyClients(), ckpt_path=last)
    assert (run.current_round, run.differs) == (3, {})
    again = trainer(tmp_path, 3, seed=9)
    with pytest.warns(UserWarning, match=r"trainer.seed was \d+, is 9\."):
        again.fit(module(), TinyClients(), ckpt_path=last)


class Named(TinyClients):
    def __init__(self, *names: str, **more: Any) -> None:
        super().__init__(**more)
        self.names = names

    def client_names(self) -> list[str]:
        return list(self.names)


def test_other_clients_are_refused_by_their_names(last: Path, tmp_path: Path) -> None:
    for call in (FederatedTrainer.fit, FederatedTrainer.test):
        with pytest.raises(
            CheckpointError,
            match=r"last.ckpt is of other clients: client 0 was client_0, is client_1; client 1 was client_1, is"
            r" client_0\. Give the data of that run's clients, under the same names and in the same order",
        ):
            call(trainer(tmp_path), module(), Named("client_1", "client_0", "client_2"), ckpt_path=last)


@pytest.mark.parametrize("names", ["bac", "ab", "abcd", "abd"])
def test_a_fit_s_models_are_not_those_of_other_clients(names: str, tmp_path: Path) -> None:
    run = quiet_trainer(PersonalLayers(layers=["linear.bias"]), max_rounds=1, default_root_dir=tmp_path)
    made, data = TinyModule(), Named(*"abc")
    run.fit(made, data)
    tested = run.test(made, data)
    others = Named(*names, sizes=(8,) * len(names))
    with pytest.raises(ConfigurationError, match=f"the clients a, b, c, the data of {', '.join(names)}: "):
        run.test(made, others)
    assert run.test(made, data) == tested


def goes_on(last: Path, root: Path, data: Any = None, **more: Any) -> dict[str, list[str]]:
    """What differs, as the warning and the summary say it."""
    made = more.pop("module", None) or module()
    run = trainer(root, 3, **more)
    run.fit(made, TinyClients() if data is None else data, ckpt_path=last)
    summary = json.loads((Path(run.log_dir) / "summary.json").read_text())
    assert summary.get("differs_from_checkpoint", {}) == run.differs
    return run.differs


@pytest.mark.slow
def test_what_changes_no_result_is_not_said(last: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    data = TinyClients()
    data.eval_batch_size = 3
    more = {"extra": [LearningCurves()], "log_every_n_steps": 1, "num_threads": 2, "log_per_client": False}
    assert goes_on(last, tmp_path / "elsewhere", data, **more) == {}
    assert not [warning for warning in recwarn if "differs" in str(warning.message)]


@pytest.mark.slow
def test_another_recipe_is_said_by_name_and_value(last: Path, tmp_path: Path) -> None:
    said = r"last.ckpt is of a run that differs from this one: .*; and 1 more\."
    with pytest.warns(UserWarning, match=said + ".* optimisers and schedulers that continue keep their rates"):
        found = goes_on(
            last,
            tmp_path,
            TinyClients(batch_size=4),
            module=module(learning_rate=0.01),
            seed=3,
            local_steps=1,
            callbacks=[LocalMixup(alpha=0.1), UniformSampling(cohort_size=2), ModelCheckpoint()],
        )
    seed, steps = (repr(settings("", 1).get(name)) for name in ("seed", "local_steps"))
    assert found == {
        "trainer.local_steps": [steps, "1"],
        "trainer.seed": [seed, "3"],
        "trainer.callbacks": ["'DROClientSampling, LocalMixup'", "'LocalMixup, UniformSampling'"],
        "model.learning_rate": ["0.05", "0.01"],
        "LocalMixup.alpha": ["0.4", "0.1"],
        "data.batch_size": ["8", "4"],
    }


@pytest.mark.parametrize("name", ["folder", "HCCT"])
def test_callbacks_are_compared_where_there_were_none_and_files_have_their_names(name: str, tmp_path: Path) -> None:
    """The recipe without callbacks names none, which is no path; a file called as a class changes nothing."""
    (tmp_path / name).mkdir()
    plain = [ModelCheckpoint(every_n_rounds=1)]
    before = trainer(tmp_path, 1, callbacks=plain)
    before.fit(module(), TinyClients())
    last = Path(before.log_dir) / "checkpoints" / "last.ckpt"
    with pytest.warns(UserWarning, match="trainer.callbacks was"):
        found = goes_on(last, tmp_path, callbacks=[*plain, HCCT(), LearningCurves()])
    assert found["trainer.callbacks"] == ["''", "'HCCT'"]


@pytest.mark.parametrize(
    ("before", "now", "name"),
    [
        (
            [FedCollab(discriminator=DiscriminatorSettings(max_rounds=10))],
            [FedCollab(discriminator=DiscriminatorSettings(max_rounds=10, max_train=7))],
            "FedCollab.discriminator",
        ),
        ([LabelNoise(std=1.0), LabelNoise(std=2.0)], [LabelNoise(std=3.0), LabelNoise(std=2.0)], "LabelNoise.std"),
    ],
)
@pytest.mark.usefixtures("few_draws")
def test_settings_of_all_callbacks_are_compared(
    before: list[Callback], now: list[Callback], name: str, tmp_path: Path
) -> None:
    """Also those within an argument, and of each of several callbacks of one class."""
    run = trainer(tmp_path, 1, callbacks=[*before, ModelCheckpoint(every_n_rounds=1)])
    run.fit(module(), TinyClients())
    last = Path(run.log_dir) / "checkpoints" / "last.ckpt"
    assert name in goes_on(last, tmp_path, callbacks=[*now, ModelCheckpoint(every_n_rounds=1)])


def shifted(client: int) -> TinyClients:
    data = TinyClients()
    data.sets[client, "train"].tensors[1].add_(5)  # type: ignore[attr-defined]
    return data


@pytest.mark.slow
def test_other_data_are_said_by_client(last: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"data of client_1 was 10 samples \(train\), is 10 other samples \(train\)"):
        assert list(goes_on(last, tmp_path, shifted(1))) == ["the data of client_1"]
    label = TinyClients()
    label.sets[2, "val"].tensors[1][0] += 0.1  # type: ignore[attr-defined]
    assert goes_on(last, tmp_path, label) == {"the data of client_2": ["6 samples (val)", "6 other samples (val)"]}
    more = goes_on(last, tmp_path, TinyClients((24, 11, 18)))
    assert more["the data of client_1"] == ["10 samples (train)", "11 samples (train)"]


@pytest.mark.slow
def test_an_evaluation_says_what_it_depends_on(last: Path, tmp_path: Path) -> None:
    data = TinyClients(batch_size=4)
    data.sets[0, "val"].tensors[1].add_(1)  # type: ignore[attr-defined]
    run = FederatedTrainer(**{**settings(str(tmp_path), 1), "logger": False, "seed": 8})
    run.validate(module(learning_rate=0.1), data, ckpt_path=last)
    assert run.differs == {
        "model.learning_rate": ["0.05", "0.1"],
        "the data of client_0": ["6 samples (val)", "6 other samples (val)"],
    }


def test_a_fit_with_nothing_left_to_train_says_so_and_ends_well(last: Path, tmp_path: Path) -> None:
    for rounds in (2, 1):
        run = trainer(tmp_path, rounds)
        with pytest.warns(UserWarning, match=rf"nothing is left to train: .* round 2, .*max_rounds is {rounds}"):
            run.fit(module(), TinyClients(), ckpt_path=last)
        assert (Path(run.log_dir) / "summary.json").is_file()


class OtherModule(TinyModule):
    pass


@pytest.mark.parametrize(
    ("content", "made", "data", "words"),
    [
        (None, module(), TinyClients((8, 8)), "num_clients is 3.* 2"),
        (None, TinyModule(), TinyClients(), "layout"),
        (None, OtherModule(dropout=0.2, norm=True), TinyClients(), "tiny.TinyModule.*OtherModule"),
        (b"damaged", module(), TinyClients(), "last.ckpt is damaged"),
        ({"state_dict": {}}, module(), TinyClients(), "last.ckpt .*single"),
        (
            {"lightning_fl_version": "0", "client": "north", "round": 1, "token": ""},
            module(),
            TinyClients(),
            "part of one client, north",
        ),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_and_leaves_no_folder(
    content: Any, made: TinyModule, data: TinyClients, words: str, last: Path, tmp_path: Path
) -> None:
    if isinstance(content, bytes):
        last.write_bytes(content)
    elif content is not None:
        torch.save(content, last)
    with pytest.raises(CheckpointError, match=words):
        trainer(tmp_path / "runs").fit(made, data, ckpt_path=last)
    assert not list((tmp_path / "runs").rglob("*")) or content is None


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "ckpt_path is empty: give last"),
        (".", "is a folder: give a file"),
        ("nowhere.ckpt", "nowhere.ckpt"),
        ("last", "last.ckpt.*trainer.default_root_dir"),
    ],
)
def test_a_path_without_a_checkpoint_leaves_no_folder(path: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=words):
        trainer(tmp_path / "runs").fit(module(), TinyClients(), ckpt_path=path)
    assert not (tmp_path / "runs").exists()


class Holding(Callback):
    """Keeps what a checkpoint cannot hold."""

    def state_dict(self) -> dict[str, Any]:
        return {"recent": deque([1])}


def test_a_state_that_could_not_be_read_again_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    run = trainer(tmp_path, extra=[Holding()])
    with pytest.raises(
        CheckpointError,
        match=r"ckpt could not be read again: its callbacks of Holding holds a collections.deque, and a",
    ):
        run.fit(module(), TinyClients())
    assert run.current_round == 1
    assert not list((Path(run.log_dir) / "checkpoints").glob("*"))


def test_a_checkpoint_keeps_the_plain_hyper_parameters() -> None:
    """Others, such as a module, could not be read again without running code."""
    plain = {"a": 1, "b": [0.5, None, {"c": "text"}], "d": True}
    module = SimpleNamespace(hparams={**plain, "net": nn.Linear(1, 1), "nested": [nn.ReLU()], "named": {1: 2}})
    assert plain_hyper_parameters(module) == plain
    assert plain_hyper_parameters(object()) == {}
