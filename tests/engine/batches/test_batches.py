import itertools

import pytest
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.fabric.utilities.seed import pl_worker_init_function
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import DataLoader as GraphLoader

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.digest import data_digest
from lightning_fl.data.module import FederatedDataModule
from lightning_fl.engine.batches.client import ClientBatches
from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.batches.from_loaders import LoaderBatches
from lightning_fl.engine.batches.packs import PackedBatches

PATH = (1, 2, 3, "train")


class Given(FederatedDataModule):
    """Client i's training data are the i-th of those given; all have the same validation data."""

    def __init__(self, *train, val=None, **arguments):
        super().__init__(**arguments)
        self.train, self.val = train, val

    @property
    def num_clients(self) -> int:
        return len(self.train)

    def client_data(self, client, split):
        return {"train": self.train[client], "val": self.val, "test": None}[split]


def made(data, split="train", **arguments) -> ClientBatches:
    module = Given(data, val=data, **{"batch_size": 4, **arguments})
    return BatchFactory(module, torch.device("cpu")).batches(0, split)


@pytest.mark.parametrize("rows", [[[float("nan")] * 2] * 3, [[float("nan")] * 2] * 2 + [[float("nan"), 1.0]]])
def test_a_client_without_any_target_is_refused(rows):
    named = TensorDataset(torch.zeros(3, 1), torch.tensor(rows))
    factory = BatchFactory(Given(TensorDataset(torch.zeros(2, 1), torch.zeros(2, 2)), named), torch.device("cpu"))
    assert factory.batches(0, "train").num_samples == 2
    if torch.tensor(rows).isnan().all():
        with pytest.raises(DataError, match=r"client 1 \(client_1\)"):
            factory.batches(1, "train")
    else:
        assert factory.batches(1, "train").num_samples == 3


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count) * 10, torch.arange(count))


def seen(batches, entry: int = 1) -> list[list[int]]:
    return [batch[entry].tolist() for batch, _ in batches]


def flat(lists) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


class Fetched(Dataset):
    """Samples that must be fetched one by one; each draws from torch's default generator, as an augmentation does."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        return torch.rand(()), index


class Stream(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class SizedStream(Stream):
    def __len__(self):
        return len(self.items)


def graphs(count: int = 6) -> list[Data]:
    return [
        Data(x=torch.full((n + 1, 1), float(n)), edge_index=torch.zeros(2, n, dtype=torch.long), y=torch.tensor([n]))
        for n in range(count)
    ]


class Graphs(InMemoryDataset):
    def __init__(self, items):
        super().__init__()
        self.data, self.slices = self.collate(items)


# -- packed data -----------------------------------------------------------------------------------------------------


def test_once_visits_every_sample_in_order():
    batches = made(numbers(10))
    assert isinstance(batches, PackedBatches)
    assert batches.on_device
    assert batches.num_samples == 10
    assert batches.epoch_length() == 3
    assert seen(batches.once(PATH)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert seen(batches.once(PATH), 0)[2] == [80, 90]
    assert [size for _, size in batches.once(PATH)] == [4, 4, 2]


def test_a_loader_that_gives_no_batch_is_refused_whatever_reads_it():
    for workers in (0, 1):
        loader = DataLoader(numbers(3), batch_size=5, drop_last=True, num_workers=workers)
        if workers == 0:  # in memory: the only batch is kept
            assert made(loader).epoch_length() == 1
            continue
        with pytest.raises(DataError, match="3 training samples, .*drop_last"):
            made(loader)


def test_indices_of_subsets_may_count_from_the_end():
    whole = numbers(6)
    subsets = [Subset(whole, indices) for indices in ([-1, 2, -3], [5, 2, 3])]
    assert seen(made(subsets[0], "val").once(PATH)) == seen(made(subsets[1], "val").once(PATH)) == [[5, 2, 3]]
    assert data_digest(subsets[0]) == data_digest(subsets[1])


def test_a_pass_in_training_order_visits_every_sample_once():
    """13 passes of 23 batches: more than are gathered at once, and not a multiple of it."""
    batches = made(numbers(91))
    length = batches.epoch_length()
    assert length == 23
    stream = seen(batches.shuffled(PATH, 13 * length))
    assert len(stream) == 13 * length
    passes = [flat(stream[i * length : (i + 1) * length]) for i in range(13)]
    for one in passes:
        assert sorted(one) == list(range(91))
    assert len({tuple(one) for one in passes}) == 13
    assert [len(batch) for batch in stream[:length]] == [4] * 22 + [3]
    assert flat(seen(batches.shuffled(PATH, 5), 0)) == [10 * y for y in flat(stream[:5])]


@pytest.mark.parametrize("num_batches", [1, 8, 9, 23, 24, 60])
def test_the_order_depends_on_the_seed_path_alone(num_batches):
    batches, others = made(numbers(91)), made(numbers(91))
    stream = seen(batches.shuffled(PATH, num_batches))
    assert len(stream) == num_batches
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert seen(others.shuffled(PATH, num_batches)) == stream
    assert torch.equal(torch.get_rng_state(), before)
    for path in ((0, 2, 3, "train"), (1, 1, 3, "train"), (1, 2, 4, "train"), (1, 2, 3, "snapshot")):
        assert seen(others.shuffled(path, num_batches)) != stream
    # A shorter turn is the beginning of a longer one.
    assert seen(batches.shuffled(PATH, 100))[:num_batches] == stream


def test_drop_last_leaves_out_the_rest_but_never_all():
    batches = made(numbers(10), drop_last=True)
    assert batches.epoch_length() == 2
    assert batches.num_samples == 10
    assert [len(batch) for batch in seen(batches.shuffled(PATH, 4))] == [4] * 4
    # The sample that is left out is another in every pass: over time all are seen.
    assert {i for batch in seen(batches.shuffled(PATH, 40)) for i in batch} == set(range(10))
    assert [len(batch) for batch in seen(made(numbers(3), drop_last=True).shuffled(PATH, 2))] == [3, 3]
    assert made(numbers(8), drop_last=True).epoch_length() == 2
    # Evaluation leaves out nothing.
    assert made(numbers(10), "val", drop_last=True, eval_batch_size=4).epoch_length() == 3


def test_without_shuffling_batches_come_in_order_and_are_gathered_once(monkeypatch):
    batches = made(numbers(10), shuffle=False)
    calls = []
    gather = batches.pack.gather
    monkeypatch.setattr(batches.pack, "gather", lambda *arguments: calls.append(1) or gather(*arguments))
    assert seen(batches.shuffled(PATH, 7)) == [*([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2), [0, 1, 2, 3]]
    assert seen(batches.once(PATH))[0] == [0, 1, 2, 3]
    assert len(calls) == 1


@pytest.mark.parametrize("inference", [False, True])
def test_what_a_step_does_to_its_batch_is_not_there_the_next_time(inference):
    batches = made(numbers(6), "val", eval_batch_size=4)
    with torch.inference_mode(inference):
        for batch, _ in batches.once(PATH):
            batch[0] = batch[0] + 1000
        for batch, _ in batches.once(PATH):
            batch[1].add_(1000)
    assert seen(batches.once(PATH), 0) == [[0, 10, 20, 30], [40, 50]]
    assert seen(batches.once(PATH), 1) == [[0, 1, 2, 3], [4, 5]]

    batches = made(graphs(), "val", eval_batch_size=4)
    for batch, _ in batches.once(PATH):
        batch.y = batch.y - 3
        batch.extra = 1
    for batch, _ in batches.once(PATH):
        batch.x.mul_(2)
        batch.edge_index += 1
    (first, _), (second, _) = batches.once(PATH)
    assert torch.equal(first.y, torch.arange(4))
    assert torch.equal(second.x, torch.tensor([[4.0]] * 5 + [[5.0]] * 6))
    assert "extra" not in first
    assert torch.equal(first.to_data_list()[2].edge_index, torch.zeros(2, 2, dtype=torch.long))


def test_a_gradient_that_a_step_asks_for_is_not_there_the_next_time():
    batches = made(TensorDataset(torch.ones(6, 1), torch.arange(6)), "val", eval_batch_size=4)
    for _ in range(2):
        for (x, _), _ in batches.once(PATH):
            assert not x.requires_grad
            x.requires_grad_().sum().backward()
            assert torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("part", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(6))])
def test_a_data_set_that_is_changed_in_place_is_read_again(part):
    dataset = numbers(6)
    batches = made(part(dataset), shuffle=False)
    for _ in range(2):
        assert flat(seen(batches.once(PATH))) == flat(seen(batches.shuffled(PATH, 2))) == dataset.tensors[1].tolist()
        dataset.tensors[1].neg_()


def test_a_data_set_of_inference_tensors():
    with torch.inference_mode():
        batches = made(numbers(6))
    for _ in range(2):
        assert seen(batches.once(PATH)) == [[0, 1, 2, 3], [4, 5]]


def test_evaluation_batch_size():
    assert made(numbers(10), "val", batch_size=4).epoch_length() == 1  # four times as many, without gradients
    assert made(numbers(10), "val", batch_size=2).epoch_length() == 2
    assert made(numbers(10), "val", batch_size=4, eval_batch_size=10).epoch_length() == 1
    assert made(numbers(10), "train", batch_size=4, eval_batch_size=10).epoch_length() == 3


def test_subset_of_a_subset():
    inner = Subset(numbers(20), [3, 1, 4, 15, 9, 2, 6])
    outer = Subset(inner, torch.tensor([6, 0, 2]))
    batches = made(outer)
    assert isinstance(batches, PackedBatches)
    assert seen(batches.once(PATH)) == [[int(outer[i][1]) for i in range(3)]] == [[6, 3, 4]]


def test_clients_share_one_pack():
    shared = numbers(20)
    factory = BatchFactory(
        Given(Subset(shared, range(10)), Subset(shared, range(10, 20)), numbers(20)), torch.device("cpu")
    )
    first, second, third = (factory.batches(client, "train") for client in range(3))
    assert first.pack is second.pack
    assert third.pack is not first.pack
    assert seen(second.once(PATH)) == [list(range(10, 20))]
    assert factory.batches(0, "train") is first
    assert factory.batches(0, "val") is None
    assert factory.batches(0, "test") is None


def test_targets_of_one_client_are_replaced_for_it_alone():
    shared = numbers(10)
    factory = BatchFactory(Given(Subset(shared, [7, 5, 3]), Subset(shared, [5, 6]), batch_size=2), torch.device("cpu"))
    first, second = factory.batches(0, "train"), factory.batches(1, "train")
    assert first.targets.tolist() == [7, 5, 3]
    seen(first.once(PATH))  # kept batches are forgotten
    first.targets = torch.tensor([70, 50, 30])
    assert first.targets.tolist() == [70, 50, 30]
    assert seen(first.once(PATH)) == [[70, 50], [30]]
    assert all(batch[1].tolist() == batch[0].tolist() for batch, _ in first.shuffled(PATH, 8))
    assert second.targets.tolist() == [5, 6]
    assert shared.tensors[1].tolist() == list(range(10))


def test_some_samples_are_drawn_by_the_seed_path_with_the_client_s_own_targets():
    batches = made(Subset(numbers(12), range(1, 12)))
    batches.targets = -batches.targets
    drawn = [flat(seen(batches.some((seed,), 6))) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    for found, lengths in ((drawn[0], [4, 2]), (drawn[2], [4, 2])):
        assert len(set(found)) == 6
        assert set(found) < set(range(-11, 0))
        assert [size for _, size in batches.some((1,), 6)] == lengths
    assert flat(seen(batches.some((1,), 6), 0)) == [-10 * target for target in drawn[0]]
    for number in (11, 50, None):
        assert flat(seen(batches.some((1,), number))) == list(range(-1, -12, -1))


def test_some_samples_of_a_loader_are_its_first_batches():
    batches = LoaderBatches(DataLoader(Fetched(12), batch_size=4))
    assert [len(seen(batches.some(PATH, number))) for number in (1, 4, 5, 12, 50, None)] == [1, 1, 2, 3, 3, 3]


def test_graph_targets_are_replaced():
    batches = made(Subset(graphs(), [4, 1, 2]))
    assert batches.targets.tolist() == [4, 1, 2]
    batches.targets = -batches.targets
    ((batch, size),) = batches.once(PATH)
    assert size == 3
    assert batch.y.tolist() == [-4, -1, -2]
    for batch, _ in batches.shuffled(PATH, 3):
        assert batch.y.tolist() == [-int(graph.x[0]) for graph in batch.to_data_list()]


def test_graphs_without_targets_are_batched():
    items = [Data(x=torch.full((n, 1), float(n))) for n in (1, 2, 3)]
    batches = made(items)
    assert sum(float(batch.x.sum()) for batch, _ in batches.shuffled(PATH, 1)) == 14
    with pytest.raises(ConfigurationError, match="`y`"):
        _ = batches.targets


def test_views_of_a_held_data_set():
    held = Graphs(graphs(12))
    order = torch.tensor([11, 2, 7, 5, 0, 1, 3, 4, 6, 8, 9, 10])
    view = held[order]
    factory = BatchFactory(Given(view[:5], view[5:], Subset(view[2:], [3, 0]), held), torch.device("cpu"))
    parts = [factory.batches(client, "train") for client in range(4)]
    assert len({id(part.pack) for part in parts}) == 1
    ys = [[int(y) for batch, _ in part.once(PATH) for y in batch.y] for part in parts]
    assert ys == [[11, 2, 7, 5, 0], [1, 3, 4, 6, 8, 9, 10], [1, 7], list(range(12))]


def test_one_view_s_transform_is_not_another_s():
    held = Graphs(graphs(6))
    plain, changed = held[:3], held[3:]
    changed.transform = lambda graph: Data(x=graph.x * 100, y=graph.y)
    for order in ((plain, changed), (changed, plain)):
        factory = BatchFactory(Given(*order), torch.device("cpu"))
        parts = [factory.batches(client, "train") for client in range(2)]
        largest = {float(batch.x.max()) for part in parts for batch, _ in part.shuffled(PATH, 1)}
        assert largest == {2.0, 500.0}


# -- the user's own loaders --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_plain_loader_s_batches_without_the_loader(drop_last):
    dataset = Subset(numbers(20), range(1, 12))
    loader = DataLoader(dataset, batch_size=4, drop_last=drop_last)
    batches = made(loader, batch_size=1)
    assert isinstance(batches, PackedBatches)
    assert batches.epoch_length() == len(loader)
    for (ours, _), theirs in itertools.zip_longest(batches.shuffled(PATH, len(loader)), loader):
        assert type(ours) is type(theirs)
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_plain_graph_loader_s_batches_without_the_loader():
    loader = GraphLoader(Graphs(graphs(9)), batch_size=4)
    batches = made(loader)
    assert isinstance(batches, PackedBatches)
    for (ours, size), theirs in itertools.zip_longest(batches.once(PATH), loader):
        assert size == theirs.num_graphs
        assert set(ours.keys()) == set(theirs.keys())
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs.keys())  # noqa: SIM118


def test_a_shuffled_loader_is_shuffled_by_the_seed_path():
    batches = made(DataLoader(numbers(12), batch_size=4, shuffle=True))
    assert isinstance(batches, PackedBatches)
    stream = seen(batches.shuffled(PATH, 3))
    assert sorted(flat(stream)) == list(range(12))
    assert stream != seen(made(DataLoader(numbers(12), batch_size=4)).shuffled(PATH, 3))


class Reversed(DataLoader):
    def __iter__(self):
        return reversed(list(super().__iter__()))


def stacked(samples):
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(numbers(8), batch_size=4, collate_fn=stacked),
        DataLoader(numbers(8), batch_sampler=BatchSampler(SequentialSampler(range(8)), 3, False)),
        DataLoader(numbers(8), batch_sampler=[[0, 1], [2]]),
        DataLoader(numbers(8), batch_size=4, sampler=SubsetRandomSampler([1, 2])),
        DataLoader(numbers(8), batch_size=4, sampler=SequentialSampler(range(5))),
        DataLoader(numbers(8), batch_size=4, sampler=RandomSampler(numbers(8), replacement=True)),
        DataLoader(numbers(8), batch_size=4, sampler=RandomSampler(numbers(8), num_samples=3)),
        DataLoader(numbers(8), batch_size=None),
        DataLoader(numbers(8), batch_size=4, num_workers=1),
        DataLoader(Stream([torch.tensor([1])]), batch_size=4),
        DataLoader(Fetched(8), batch_size=4),
        GraphLoader(Graphs(graphs()), batch_size=4, follow_batch=["x"]),
        GraphLoader(Graphs(graphs()), batch_size=4, exclude_keys=["y"]),
        Reversed(numbers(8), batch_size=4),
    ],
)  # fmt: skip
def test_any_other_loader_is_used_as_it_is(loader):
    batches = made(loader)
    assert isinstance(batches, LoaderBatches)
    assert batches._loader is loader
    assert not batches.on_device


def test_a_loader_s_own_order_is_kept():
    assert seen(made(Reversed(numbers(6), batch_size=4)).once(PATH)) == [[4, 5], [0, 1, 2, 3]]
    own = DataLoader(numbers(8), batch_sampler=[[7, 0], [2]])
    batches = made(own)
    assert batches.epoch_length() == 2
    assert seen(batches.shuffled(PATH, 5)) == [[7, 0], [2], [7, 0], [2], [7, 0]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Fetched(10), batch_size=4, shuffle=True),
        lambda: DataLoader(Fetched(10), batch_size=4, shuffle=True, generator=torch.Generator()),
        lambda: DataLoader(Fetched(10), batch_size=4, sampler=SubsetRandomSampler(range(10), torch.Generator())),
        lambda: DataLoader(
            Fetched(10), batch_sampler=BatchSampler(RandomSampler(range(10), generator=torch.Generator()), 4, False)
        ),
        lambda: Fetched(10),
        pytest.param(
            lambda: DataLoader(Fetched(10), batch_size=4, shuffle=True, num_workers=1), marks=pytest.mark.processes
        ),
    ],
    ids=["default", "generator", "sampler", "batch sampler", "dataset", "worker"],
)
def test_a_loader_s_draws_come_from_the_seed_path(make):
    """Order and augmentation, whatever was drawn before and however often the loader was read."""
    batches = made(make())
    assert isinstance(batches, LoaderBatches)
    assert batches.num_samples == 10
    stream = [[entry.tolist() for entry in batch] for batch, _ in batches.shuffled(PATH, 5)]
    assert sorted(flat(index for _, index in stream[:3])) == list(range(10))
    assert stream[:2] != stream[3:]
    torch.manual_seed(11)
    again = [[entry.tolist() for entry in batch] for batch, _ in batches.shuffled(PATH, 5)]
    fresh = [[entry.tolist() for entry in batch] for batch, _ in made(make()).shuffled(PATH, 5)]
    other = [[entry.tolist() for entry in batch] for batch, _ in batches.shuffled((1, 3, 3, "train"), 5)]
    assert again == fresh == stream
    assert other != stream


def test_a_loader_is_read_no_further_than_needed():
    read = []

    class Counted(Fetched):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    batches = made(DataLoader(Counted(8), batch_size=4))
    assert len(list(batches.shuffled(PATH, 2))) == 2
    assert read == list(range(8))


def test_samplers_with_epochs_are_told_the_number_of_the_pass_once():
    """And draw, where they do so by a seed of their own, from the path that is given."""

    class Epochs(SequentialSampler):
        seed = 0

        def __init__(self, data):
            super().__init__(data)
            self.told = []

        def set_epoch(self, epoch):
            self.told.append(epoch)

    sampler = Epochs(range(4))
    for loader in (
        DataLoader(numbers(4), batch_size=2, sampler=sampler),
        DataLoader(numbers(4), batch_sampler=BatchSampler(sampler, 2, drop_last=False)),
    ):
        sampler.told.clear()
        batches = made(loader)
        list(batches.shuffled(PATH, 3))
        first = sampler.seed
        batches.next_pass = 7
        list(batches.once((1, 3, 3, "train")))
        assert sampler.told == [0, 1, 7]
        assert sampler.seed != first


class Endless:
    """Batches without an end, of which a pass has three."""

    def __iter__(self):
        return (torch.full((2, 1), float(number)) for number in itertools.count())

    def __len__(self):
        return 3


@pytest.mark.parametrize("make", [Endless, lambda: CombinedLoader({"of": Endless()}, "max_size_cycle")])
def test_a_pass_ends_with_the_length_of_its_loader(make):
    batches = LoaderBatches(make())

    def firsts(read):
        return [float(torch.utils._pytree.tree_leaves(batch)[0][0, 0]) for batch, _ in read]

    assert firsts(batches.once(PATH)) == [0.0, 1.0, 2.0]
    assert firsts(batches.shuffled(PATH, 5)) == [0.0, 1.0, 2.0, 0.0, 1.0]
    batches.count(PATH, batches.epoch_length())
    assert batches.num_samples == 6


def test_what_worker_processes_draw_does_not_depend_on_the_rank(monkeypatch):
    def drawn(rank):
        monkeypatch.setattr(rank_zero_only, "rank", rank)
        batches = made(DataLoader(Fetched(4), batch_size=4, num_workers=1, worker_init_fn=pl_worker_init_function))
        ((values, _), _), *_ = batches.shuffled(PATH, 1)
        assert rank_zero_only.rank == rank
        return values.tolist()

    assert drawn(0) == drawn(1)


def test_fetched_samples_are_collated():
    batches = made(Fetched(6), shuffle=False)
    assert batches.epoch_length() == 2
    assert seen(batches.once(PATH)) == [[0, 1, 2, 3], [4, 5]]
    assert made(Fetched(6), drop_last=True).epoch_length() == 1
    assert made(Fetched(3), drop_last=True).epoch_length() == 1


def test_graphs_that_are_fetched_are_collated_by_pyg():
    unlike = [Data(x=torch.ones(2, 1), name="a"), Data(x=torch.ones(1, 1), name="b", extra=1)]
    batches = made(Subset(unlike, [1, 0]), shuffle=False, batch_size=1)
    assert isinstance(batches, LoaderBatches)
    (first, count), (second, _) = batches.once(PATH)
    assert isinstance(first, Batch)
    assert count == 1
    assert (first.name, second.name) == (["b"], ["a"])

    ((pair, count),) = made(Stream([(graph, n) for n, graph in enumerate(graphs(3))])).once(PATH)
    assert isinstance(pair[0], Batch)
    assert pair[0].num_graphs == 3
    assert pair[1].tolist() == [0, 1, 2]
    assert count is None


def test_streams():
    items = [(torch.tensor([float(i)]), i) for i in range(5)]
    batches = made(Stream(items), batch_size=2, eval_batch_size=4)
    assert batches.num_samples == 0
    assert batches.epoch_length() is None
    assert [batch[1].tolist() for batch, _ in batches.shuffled(PATH, 4)] == [[0, 1], [2, 3], [4], [0, 1]]
    evaluation = made(Stream(items), "val", batch_size=2, eval_batch_size=4)
    assert seen(evaluation.once(PATH)) == [[0, 1, 2, 3], [4]]
    sized = made(SizedStream(items), batch_size=2, drop_last=True)
    assert sized.num_samples == 5
    assert seen(sized.once(PATH)) == [[0, 1], [2, 3]]
    of_graphs = made(Stream(graphs()), batch_size=4)
    assert [size for _, size in of_graphs.once(PATH)] == [4, 2]
    assert list(made(Stream([])).shuffled(PATH, 3)) == []


def test_targets_of_a_loader_are_not_at_hand():
    batches = made(Fetched(3))
    with pytest.raises(ConfigurationError, match="DataLoader"):
        _ = batches.targets
    with pytest.raises(ConfigurationError, match="change the targets in the data set itself"):
        batches.targets = torch.zeros(3)


@pytest.mark.parametrize("empty", [None, numbers(0), Subset(numbers(3), []), Fetched(0), DataLoader(numbers(0))])
def test_a_client_without_training_data_is_refused(empty):
    factory = BatchFactory(Given(numbers(3), empty, val=empty), torch.device("cpu"))
    assert factory.batches(1, "val") is None
    with pytest.raises(DataError, match=r"client 1 \(client_1\) has no training samples: use fewer clients"):
        factory.batches(1, "train")


def test_several_data_sets_of_a_client_are_combined_as_lightning_does():
    """In training side by side, the short one anew; in evaluation one after another."""
    parts = {"a": numbers(6), "b": DataLoader(numbers(2), batch_size=1)}
    training = made(parts, batch_size=2, shuffle=False)
    assert (training.num_samples, training.epoch_length()) == (6, 3)
    assert [(batch["a"][1].tolist(), batch["b"][1].tolist()) for batch, _ in training.shuffled(PATH, 4)] == [
        ([0, 1], [0]),
        ([2, 3], [1]),
        ([4, 5], [0]),
        ([0, 1], [0]),
    ]
    evaluation = made(parts, "val", eval_batch_size=4)
    assert [(part.num_samples, part.epoch_length()) for part in evaluation.loaders] == [(6, 2), (2, 2)]
    assert seen(evaluation.once(PATH)) == [[0, 1, 2, 3], [4, 5], [0], [1]]
    assert (evaluation.num_samples, evaluation.epoch_length()) == (8, 4)
    assert [len(batch) for batch in seen(evaluation.some(PATH, 4))] == [3, 1]  # in proportion
    alone = made([numbers(3)], "val")
    assert isinstance(alone, PackedBatches)


def test_collation_is_torch_s():
    samples = [(torch.tensor(i), {"name": str(i), "value": float(i)}) for i in range(3)]

    class Mixed(Fetched):
        def __getitem__(self, index):
            return samples[index]

    ((ours, _),) = made(Mixed(3), shuffle=False).once(PATH)
    theirs = default_collate(samples)
    assert isinstance(ours[0], Tensor)
    assert torch.equal(ours[0], theirs[0])
    assert ours[1]["name"] == theirs[1]["name"]
    assert torch.equal(ours[1]["value"], theirs[1]["value"])
