"""FedCollab in a run: distances measured, read and kept, coalitions formed, new clients let in."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import two_kinds
from hooks import hooks
from rounding import assert_equal_up_to_rounding
from tiny import TinyModule
from two_kinds import TwoKinds

from lightning_fl.callbacks import ClientArrivals, CoalitionFigure, DiscriminatorSettings, FedCollab, LocalTraining
from lightning_fl.callbacks.collaboration.discriminators.inputs import client_features
from lightning_fl.callbacks.collaboration.fedcollab import distance_table, read_coalitions, read_distances
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.escaping import csv_text
from lightning_fl.functional.fedcollab import same_coalitions_share
from lightning_fl.strategies import FedAvg

pytestmark = pytest.mark.usefixtures("few_draws")
SIZES = (120, 80, 120, 80, 120)


def clients(sizes: tuple[int, ...] = SIZES) -> TwoKinds:
    return TwoKinds(sizes, shuffle=True)


def trainer(*callbacks, rounds=2, root=None, **settings):
    kept = {"logger": root is not None, "enable_checkpointing": root is not None}
    return two_kinds.trainer(*callbacks, rounds=rounds, root=root, **{**kept, **settings})


def quick(**changes) -> FedCollab:
    """Small discriminators; the capacity suits clients of about fifty samples."""
    small = DiscriminatorSettings(hidden=16, max_rounds=300, learning_rate=0.5, max_train=64)
    return FedCollab(**{"capacity": 5.0, "discriminator": small, **changes})


def given(tmp_path, matrix) -> str:
    path = tmp_path / "given.npy"
    np.save(path, np.asarray(matrix, dtype=float))
    return str(path)


def far_apart(count: int) -> np.ndarray:
    return np.ones((count, count)) - np.eye(count)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run of two rounds; its folder also saves others the measurement of the same distances."""
    run = trainer(quick(), CoalitionFigure(), root=tmp_path_factory.mktemp("measured"))
    run.fit(TinyModule(), clients())
    return run


def distances_of(run) -> str:
    return str(Path(run.log_dir) / "distances.csv")


@pytest.mark.slow
def test_clients_that_differ_are_separated_and_everything_is_kept(measured):
    run, fedcollab = measured, measured.callback(FedCollab)
    assert fedcollab.assignment == [0, 0, 0, 1, 1]
    assert run.collaboration.num_models == 2
    expected = [[120 / 320, 80 / 320, 120 / 320, 0, 0], [0, 0, 0, 0.4, 0.6]]
    torch.testing.assert_close(run.collaboration.aggregation, torch.tensor(expected, dtype=torch.float64))
    near, far = fedcollab.distances[0, 1:3].max(), fedcollab.distances[:3, 3:].min()
    assert near < far
    folder = Path(run.log_dir)
    table = pd.read_csv(folder / "distances.csv", index_col=0)
    assert list(table.columns) == list(table.index) == [f"client_{i}" for i in range(5)]
    assert np.array_equal(table.to_numpy(), fedcollab.distances.numpy())
    coalitions = pd.read_csv(folder / "coalitions.csv")
    assert coalitions["coalition"].tolist() == [0, 0, 0, 1, 1]
    assert coalitions["samples"].tolist() == list(SIZES)
    errors = pd.read_csv(folder / "distance_errors.csv", index_col=0)
    assert np.array_equal(errors.to_numpy(), fedcollab.distance_errors.numpy(), equal_nan=True)
    assert ((errors.to_numpy() > 0.02) & (errors.to_numpy() < 0.1)).sum() == 20  # 0.08 at most of 80 and 120 samples
    record = json.loads((folder / "summary.json").read_text())["fedcollab"]
    assert 0.5 < record["same_coalitions_share"] <= 1
    assert record["coalitions"] == [["client_0", "client_1", "client_2"], ["client_3", "client_4"]]
    assert record["measured_pairs"] == 10
    assert (folder / "figures" / "distances.png").is_file()
    assert (folder / "figures" / "partition.png").is_file()


@pytest.mark.slow
def test_coalitions_that_hang_on_a_few_samples_are_warned_of(tmp_path, monkeypatch):
    """Clients of one kind, and a capacity with which chance decides; known distances are not estimates."""
    monkeypatch.setitem(same_coalitions_share.__kwdefaults__, "num_draws", 40)
    with pytest.warns(UserWarning, match=r"FedCollab: .*distance_errors\.csv.* \d+% of draws"):
        trainer(weak := quick(capacity=0.3)).fit(TinyModule(), clients())
    record = trainer(known := quick(distances=given(tmp_path, far_apart(5)))).fit(TinyModule(), clients())
    assert not known.distance_errors.nan_to_num().any()
    assert weak.distance_errors.nan_to_num().any()
    assert record is None


@pytest.mark.slow
def test_equal_clients_make_fedavg_and_distant_ones_local_training(tmp_path):
    together, apart = trainer(quick(distances=given(tmp_path, np.zeros((5, 5))))), trainer()
    for run in (together, apart):
        run.fit(TinyModule(), clients())
    assert together.models[0].equal(apart.models[0])
    assert len(together.models) == 1
    alone = trainer(quick(distances=given(tmp_path, far_apart(5)), capacity=0.1))
    local = trainer(LocalTraining())
    for run in (alone, local):
        run.fit(TinyModule(), clients())
    assert all(alone.client_model(i).equal(local.client_model(i)) for i in range(5))


@pytest.mark.slow
def test_ablations_ignore_quantities_or_distances(tmp_path):
    """A large client of another kind and two pairs of small ones that are alike; what is least is found by hand."""
    matrix = 0.2 * far_apart(5)
    matrix[0, 1:] = matrix[1:, 0] = 1.0
    for i, j in ((1, 2), (3, 4)):
        matrix[i, j] = matrix[j, i] = 0.0
    coalitions = {}
    for ignore in (None, "quantities", "distances"):
        callback = FedCollab(capacity=1.5, distances=given(tmp_path, matrix), ignore=ignore)
        trainer(callback).fit(TinyModule(), clients((400, 5, 5, 5, 5)))
        coalitions[ignore] = callback.assignment
    # a small client alone 1.5 / sqrt(5) = 0.67, its pair 0.47, four 0.34 + 0.1, with the large one 0.07 + 0.95
    assert coalitions[None] == [0, 1, 1, 1, 1]
    # 84 samples each: alone 0.16, a pair 0.12, four 0.08 + 0.1
    assert coalitions["quantities"] == [0, 1, 1, 2, 2]
    # all pairs 0.48 apart: a small client alone 0.67, with everybody 0.07 + 0.47
    assert coalitions["distances"] == [0, 0, 0, 0, 0]


@pytest.mark.slow
def test_the_default_capacity_keeps_small_clients_that_differ_apart(tmp_path):
    """C is 4, the root of the mean of 16 samples. Apart (4 / sqrt(72) + 4 / sqrt(24)) / 2 = 0.64, together 0.41 + 0.4.

    The paper's 10, with an error of 10 / sqrt(24) = 2 for three small clients, would merge all: 1.61, 1.02 + 0.4.
    """
    matrix = np.kron([[0, 0.8], [0.8, 0]], np.ones((3, 3)))
    coalitions = {}
    for capacity in (None, 10.0):
        callback = quick(capacity=capacity, distances=given(tmp_path, matrix))
        run = trainer(callback, rounds=1, root=tmp_path)
        run.fit(TinyModule(), clients((24, 24, 24, 8, 8, 8)))
        coalitions[run.run_log.summary["fedcollab"]["capacity"]] = callback.assignment
    assert coalitions == {4.0: [0, 0, 0, 1, 1, 1], 10.0: [0] * 6}


@pytest.mark.slow
def test_distances_of_another_run_are_read_and_only_the_missing_ones_measured(measured, tmp_path):
    again = trainer(fedcollab := quick(distances=distances_of(measured)), root=tmp_path / "again")
    again.fit(TinyModule(), clients())
    assert "measured_pairs" not in again.run_log.summary["fedcollab"]
    assert again.models[0].equal(measured.models[0])
    table = pd.read_csv(distances_of(measured), index_col=0).drop(index="client_4", columns="client_4")
    table.iloc[::-1, ::-1].to_csv(tmp_path / "part.csv")  # clients are found by name
    part = quick(distances=str(tmp_path / "part.csv"))
    run = trainer(part, root=tmp_path / "part")
    run.fit(TinyModule(), clients())
    assert run.run_log.summary["fedcollab"]["measured_pairs"] == 4
    assert torch.equal(part.distances[:4, :4], fedcollab.distances[:4, :4])
    assert part.assignment == [0, 0, 0, 1, 1]


def test_distances_that_are_none_are_refused(tmp_path):
    names = [f"client_{i}" for i in range(3)]
    path = tmp_path / "d.npy"
    for matrix, message in (
        (np.zeros((2, 2)), r"distances .*\(2, 2\) for 3 clients"),
        ([[0, 1, 1], [2, 0, 1], [1, 1, 0]], "distances .*symmetric"),
        ([[0, math.inf, 1], [math.inf, 0, 1], [1, 1, 0]], "distances .*symmetric"),
    ):
        np.save(path, np.asarray(matrix, dtype=float))
        with pytest.raises(ConfigurationError, match=message):
            read_distances(path, names)
    with pytest.raises(ConfigurationError, match=r"nowhere\.csv cannot be read"):
        read_distances(tmp_path / "nowhere.csv", names)
    pd.DataFrame(np.zeros((2, 2)), index=["a", "b"], columns=["a", "b"]).to_csv(tmp_path / "others.csv")
    with pytest.raises(ConfigurationError, match="are not the names of this run's clients"):
        read_distances(tmp_path / "others.csv", names)
    estimates = np.array([[0, -0.14, 1], [-0.14, 0, 1], [1, 1, 0]])  # as discriminators give them
    np.save(path, estimates)
    assert read_distances(path, names).tolist() == estimates.tolist()
    np.save(path, far_apart(3) * np.nan)
    assert torch.equal(read_distances(path, names).isnan(), ~torch.eye(3, dtype=torch.bool))


def test_tables_are_read_with_any_names_of_clients(tmp_path):
    names = ["NA", "07", "=1+1"]
    distances = torch.tensor([[0, 0.25, math.nan], [0.25, 0, 0.5], [math.nan, 0.5, 0]], dtype=torch.float64)
    (tmp_path / "distances.csv").write_text(distance_table(names, distances))
    assert read_distances(tmp_path / "distances.csv", names).tolist() == pytest.approx(distances, nan_ok=True)
    (tmp_path / "r.csv").write_text(",NA,07\nNA,0,NA\n07,NA,0\n")  # as R writes what is missing
    assert read_distances(tmp_path / "r.csv", ["NA", "07"]).isnan().tolist() == [[False, True], [True, False]]
    rows = [(name, 10, label) for name, label in zip(names, (1, 0, 1), strict=True)]
    (tmp_path / "coalitions.csv").write_text(csv_text([("client", "samples", "coalition"), *rows]))
    assert read_coalitions(tmp_path, ["new", *names]) == {1: 1, 2: 0, 3: 1}


@pytest.mark.slow
def test_a_client_that_arrives_is_measured_and_put_where_it_belongs(tmp_path):
    fedcollab = quick()
    run = trainer(fedcollab, ClientArrivals(rounds={"client_1": 2, "4": 3}), rounds=4, root=tmp_path)
    run.fit(TinyModule(), clients())
    assert fedcollab.assignment == [0, 0, 0, 1, 1]
    assert run.collaboration.num_models == 2
    assert run.run_log.summary["fedcollab"]["measured_pairs"] == 3 + 3 + 4
    assert not fedcollab.distances.isnan().any()


def test_newcomers_of_one_round_leave_the_models_that_there_are(tmp_path):
    """Client 3 joins the coalition of 0 and 1, and client 4 founds one, with the average of the others' models."""
    labels = np.array([0, 0, 1, 0, 2])
    fedcollab = quick(capacity=1.0, distances=given(tmp_path, labels[:, None] != labels))
    ends, starts = [], []

    def watch(models):
        return lambda run: models.append([model.vectors[torch.float32].clone() for model in run.models])

    late = ClientArrivals(rounds={"client_3": 3, "client_4": 3})
    run = trainer(fedcollab, late, hooks(on_round_start=watch(starts), on_round_end=watch(ends)), rounds=3)
    run.fit(TinyModule(), TwoKinds())
    assert fedcollab.assignment == labels.tolist()
    assert [len(models) for models in starts] == [2, 2, 3]
    assert all(map(torch.equal, starts[2], ends[1]))
    first = sum(two_kinds.SIZES[:2]) / sum(two_kinds.SIZES[:3])
    assert_equal_up_to_rounding(starts[2][2], first * ends[1][0] + (1 - first) * ends[1][1], steps=1)


@pytest.mark.slow
def test_new_clients_join_a_finished_run_and_only_their_coalition_trains(measured, tmp_path):
    old = trainer(quick(distances=distances_of(measured)), rounds=3, root=tmp_path / "old")
    data = clients()
    four = clients(SIZES[:4])
    four.sets = {key: value for key, value in data.sets.items() if key[0] < 4}
    old.fit(TinyModule(), four)
    assert old.run_log.summary["fedcollab"]["coalitions"] == [["client_0", "client_1", "client_2"], ["client_3"]]
    folder = str(tmp_path / "old" / "version_0")
    joining = quick(structure=folder)
    new = trainer(joining, rounds=2, root=tmp_path / "new")
    new.fit(TinyModule(), data)
    assert joining.assignment == [0, 0, 0, 1, 1]
    assert new.run_log.summary["fedcollab"]["measured_pairs"] == 4
    assert new.models[0].equal(old.models[0])  # nobody new: its clients rest
    assert not new.models[1].equal(old.models[1])
    assert set(new.client_reports) == {3, 4}
    assert set(new.metrics["val"]["val_loss"].clients) == set(range(5))
    resumed = trainer(quick(structure=folder), rounds=3, root=tmp_path / "new")
    resumed.fit(TinyModule(), data, ckpt_path="last")
    assert resumed.models[0].equal(old.models[0])
    assert set(resumed.client_reports) == {3, 4}


@pytest.mark.slow
def test_a_structure_that_does_not_fit_is_refused(measured, tmp_path):
    folder = shutil.copytree(measured.log_dir, tmp_path / "old")
    with pytest.raises(ConfigurationError, match="structure=.* no new client"):
        trainer(quick(structure=str(folder))).fit(TinyModule(), clients())
    with pytest.raises(ConfigurationError, match="structure=.* client_4"):
        trainer(quick(structure=str(folder))).fit(TinyModule(), clients(SIZES[:4]))
    with pytest.raises(ConfigurationError, match=r"coalitions\.csv cannot be read|distances\.csv cannot be read"):
        trainer(quick(structure=str(tmp_path))).fit(TinyModule(), clients())
    (folder / "models" / "shared_0.ckpt").unlink()
    joining = quick(structure=str(folder), discriminator=DiscriminatorSettings(hidden=4, max_rounds=10))
    with pytest.raises(ConfigurationError, match=r"structure: .*shared_0\.ckpt"):
        trainer(joining).fit(TinyModule(), clients((*SIZES, 50)))


@pytest.mark.slow
def test_a_stopped_run_measures_nothing_again_and_ends_alike(measured, tmp_path):
    whole = trainer(quick(distances=distances_of(measured)), rounds=4)
    whole.fit(TinyModule(), clients())
    shutil.copytree(measured.log_dir, tmp_path / "parts" / "version_0")
    resumed = trainer(fedcollab := quick(), rounds=4, root=tmp_path / "parts")
    resumed.fit(TinyModule(), clients(), ckpt_path="last")
    record = resumed.run_log.summary["fedcollab"]
    assert record == measured.run_log.summary["fedcollab"]  # and its seconds
    assert record["measured_pairs"] == 10
    assert fedcollab.assignment == [0, 0, 0, 1, 1]
    assert all(resumed.client_model(i).equal(whole.client_model(i)) for i in range(5))
    assert (tmp_path / "parts" / "version_1" / "distances.csv").is_file()


class Negate(torch.nn.Module):
    def forward(self, x):
        return -x[:, :2]


@pytest.mark.slow
def test_a_frozen_encoder_makes_the_features():
    encoder = Negate()
    run = trainer(fedcollab := quick(encoder=encoder))
    run.fit(TinyModule(), clients())
    assert fedcollab.distances.shape == (5, 5)
    assert fedcollab.assignment == [0, 0, 0, 1, 1]


@pytest.mark.slow
def test_after_a_warm_up_the_models_own_layer_makes_the_features(tmp_path):
    fedcollab = quick(warm_up_rounds=2, layer="before")  # of the tiny module, the identity
    seen = []

    class Watched(FedAvg):
        def aggregate(self, update):
            seen.append(run.collaboration.num_models)
            return update.average

    run = trainer(fedcollab, CoalitionFigure(), rounds=4, root=tmp_path, strategy=Watched())
    run.fit(TinyModule(norm=True), clients())
    assert seen == [1, 1, 2, 2, 2, 2]  # two rounds of one model, two rounds of two
    assert fedcollab.assignment == [0, 0, 0, 1, 1]
    early = trainer(quick(warm_up_rounds=5, layer="before"), rounds=2, root=tmp_path / "early")
    with pytest.warns(UserWarning, match=r"warm_up_rounds=5.*max_rounds=2"):
        early.fit(TinyModule(), clients())
    plain = trainer(rounds=2)
    plain.fit(TinyModule(), clients())
    assert early.models[0].equal(plain.models[0])
    late = trainer(quick(warm_up_rounds=2, layer="before"), rounds=4, root=tmp_path)
    late.fit(TinyModule(norm=True), clients(), ckpt_path="last")
    assert late.collaboration == run.collaboration


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*the run ends at")
def test_a_client_that_arrives_is_measured_with_the_layer_of_the_warm_up(tmp_path, monkeypatch):
    """In a run and in one that is resumed: in the round after the warm-up, and when client 4 arrives."""
    measured, ends = [], []

    def watched(loop, involved, *more):
        measured.append((involved, loop.flat.weights.clone()))
        return client_features(loop, involved, *more)

    monkeypatch.setattr("lightning_fl.callbacks.collaboration.fedcollab.client_features", watched)

    def fit(rounds, **resume):
        small = DiscriminatorSettings(hidden=3, max_rounds=10)
        run = trainer(
            FedCollab(capacity=1.0, discriminator=small, warm_up_rounds=1, layer="linear"),
            ClientArrivals(rounds={"client_4": 4}),
            hooks(on_round_end=lambda run: ends.append(run.models[0].clone())),
            rounds=rounds,
            root=tmp_path,
        )
        run.fit(TinyModule(), TwoKinds(), **resume)
        return run

    whole = fit(4)
    fit(3)
    resumed = fit(4, ckpt_path="last")
    assert [involved for involved, _ in measured] == 2 * [[0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert all(weights.equal(ends[0]) for _, weights in measured)
    assert not ends[2].equal(ends[0])
    assert torch.equal(resumed.callback(FedCollab).distances, whole.callback(FedCollab).distances)
    assert resumed.communication.bytes_received == whole.communication.bytes_received
