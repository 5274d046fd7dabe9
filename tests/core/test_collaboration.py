import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import rounding

from lightning_fl import Collaboration

counts = st.lists(st.integers(1, 1000), min_size=1, max_size=8)


@st.composite
def stochastic_pairs(draw):
    num_models, num_clients = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    a = torch.rand(num_models, num_clients, generator=rng, dtype=torch.float64) + 0.01
    p = torch.rand(num_clients, num_models, generator=rng, dtype=torch.float64) + 0.01
    return a / a.sum(1, keepdim=True), p / p.sum(1, keepdim=True)


@settings(max_examples=30, deadline=None)
@given(stochastic_pairs())
def test_the_collaboration_matrix_is_row_stochastic(pair):
    collaboration = Collaboration(*pair)
    matrix = collaboration.matrix
    assert matrix.shape == (collaboration.num_clients, collaboration.num_clients)
    assert torch.allclose(matrix.sum(1), torch.ones(len(matrix), dtype=torch.float64), atol=1e-12)
    for i in range(len(matrix)):
        for j in range(len(matrix)):
            expected = sum(pair[1][i, k] * pair[0][k, j] for k in range(collaboration.num_models))
            assert matrix[i, j] == pytest.approx(float(expected), rel=rounding(torch.float64, collaboration.num_models))


@settings(max_examples=30, deadline=None)
@given(counts)
def test_fedavg_weighs_by_samples(num_samples):
    collaboration = Collaboration.fedavg(num_samples)
    beta = [n / sum(num_samples) for n in num_samples]
    assert collaboration.num_models == 1
    assert collaboration.num_clients == len(num_samples)
    assert collaboration.aggregation.tolist() == [pytest.approx(beta, rel=1e-15)]
    assert (collaboration.personalisation == 1).all()
    for row in collaboration.matrix.tolist():
        assert row == pytest.approx(beta, rel=1e-15)
    assert collaboration.model_of(0) == 0


def test_local_training_is_the_identity():
    collaboration = Collaboration.local(3)
    assert torch.equal(collaboration.matrix, torch.eye(3, dtype=torch.float64))
    assert [collaboration.model_of(i) for i in range(3)] == [0, 1, 2]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), min_size=3, max_size=9))
def test_coalitions_average_within(clients):
    labels = [0, 1, 2] + [label for label, _ in clients[3:]]
    num_samples = [count for _, count in clients]
    collaboration = Collaboration.coalitions(labels, num_samples)
    totals = [sum(n for n, other in zip(num_samples, labels, strict=True) if other == k) for k in range(3)]
    for i, label in enumerate(labels):
        assert collaboration.model_of(i) == label
        for j, other in enumerate(labels):
            expected = num_samples[j] / totals[label] if label == other else 0
            assert collaboration.matrix[i, j] == pytest.approx(expected, rel=1e-14)


def test_limits_of_coalitions():
    """All in one are FedAvg; everybody in one of its own is local training."""
    assert Collaboration.coalitions([0, 0, 0], [1, 2, 5]) == Collaboration.fedavg([1, 2, 5])
    assert Collaboration.coalitions([0, 1, 2], [1, 2, 5]) == Collaboration.local(3)
    # A client without samples may belong to a coalition of others.
    assert Collaboration.coalitions([0, 0], [4, 0]).aggregation.tolist() == [[1, 0]]


def test_who_belongs_to_no_coalition_uses_all_by_samples_and_counts_in_none():
    collaboration = Collaboration.coalitions([1, 0, -1, 1], [30, 40, 50, 10])
    assert collaboration.aggregation.tolist() == [[0, 1, 0, 0], [0.75, 0, 0, 0.25]]
    assert collaboration.personalisation.tolist() == [[0, 1], [1, 0], [0.5, 0.5], [0, 1]]


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=6), st.integers(1, 50))
def test_clients_count_in_a_model_by_how_much_they_use_it(rows, size):
    shares = torch.tensor(rows, dtype=torch.float64)
    shares /= shares.sum(1, keepdim=True)
    samples = [size + i for i in range(len(rows))]
    found = Collaboration.from_shares(shares, samples)
    assert torch.equal(found.personalisation, shares)
    for k in range(3):
        total = sum(float(shares[j, k]) * samples[j] for j in range(len(rows)))
        expected = [float(shares[i, k]) * samples[i] / total for i in range(len(rows))]
        assert found.aggregation[k].tolist() == pytest.approx(expected)


def test_a_model_of_no_use_is_the_average_of_all():
    found = Collaboration.from_shares(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), [30, 10])
    assert found.aggregation.tolist() == [[0.75, 0.25], [0.75, 0.25]]


def test_personalisation_follows_where_it_is_clear():
    assert torch.equal(Collaboration(torch.tensor([[0.5, 0.5]])).personalisation, torch.ones(2, 1, dtype=torch.float64))
    ring = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    assert torch.equal(Collaboration(ring).matrix, ring.double())
    assert Collaboration(torch.ones(1, 1)).model_of(0) == 0


def test_a_mixture_is_nobody_s_model():
    collaboration = Collaboration(torch.eye(2), torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    assert collaboration.model_of(0) is None
    assert collaboration.model_of(1) == 1


def test_matrices_are_copies():
    mine = torch.tensor([[0.25, 0.75]], dtype=torch.float64, requires_grad=True)
    collaboration = Collaboration(mine)
    with torch.no_grad():
        mine.fill_(9)
    assert collaboration.aggregation.tolist() == [[0.25, 0.75]]
    assert not collaboration.aggregation.requires_grad


@settings(max_examples=20, deadline=None)
@given(stochastic_pairs())
def test_state_round_trip(pair):
    collaboration = Collaboration(*pair)
    file = io.BytesIO()
    torch.save(collaboration.state_dict(), file)
    file.seek(0)
    again = Collaboration.from_state_dict(torch.load(file, weights_only=True))
    assert again == collaboration


def test_equality_and_text():
    assert Collaboration.local(2) != Collaboration.fedavg([1, 1])
    assert Collaboration.local(2) != "local"
    assert repr(Collaboration.fedavg([1, 1, 1])) == "Collaboration(num_models=1, num_clients=3)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Collaboration.local(2))


def test_rows_may_be_off_by_rounding():
    thirds = torch.full((1, 3), 1 / 3, dtype=torch.float32)
    assert Collaboration(thirds).num_clients == 3
