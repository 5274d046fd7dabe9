import copy
import itertools

import pytest
import torch
from torch import nn

from lightning_fl.engine.weights.flat import FlatModule, Weights, linear_combination


class Assorted(nn.Module):
    """One of everything that a module may hold."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.convolution = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
        self.frozen = nn.Parameter(torch.arange(3.0), requires_grad=False)
        self.transposed = nn.Parameter(torch.arange(6.0).reshape(2, 3).T)
        self.reduced = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
        self.precise = nn.Parameter(torch.tensor([0.1], dtype=torch.float64))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.scalar = nn.Parameter(torch.tensor(7.0))
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("codes", torch.tensor([-3, 4], dtype=torch.int8))
        self.register_buffer("expanded", torch.ones(1).expand(4))
        self.register_buffer("scratch", torch.tensor([9.0]), persistent=False)
        self.register_buffer("absent", None)


def test_flattening_keeps_every_value_and_the_module_s_own_state():
    module = Assorted()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    grads = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    flat = FlatModule(module)
    after = module.state_dict()
    assert list(after) == list(before)
    assert "scratch" not in after
    for name, value in before.items():
        assert after[name].dtype == value.dtype
        assert torch.equal(after[name], value), name
    assert grads == {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    assert set(flat.weights.vectors) == {
        torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool,
    }  # fmt: skip


def test_views_start_on_64_bytes_do_not_overlap_and_cover_what_they_hold():
    module = Assorted()
    flat = FlatModule(module)
    spans: dict[torch.dtype, list[tuple[int, int]]] = {}
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    for tensor in tensors.values():
        if tensor.numel():
            begin = tensor.data_ptr() - flat.weights.vectors[tensor.dtype].data_ptr()
            assert begin % 64 == 0
            spans.setdefault(tensor.dtype, []).append((begin, begin + tensor.numel() * tensor.element_size()))
    for dtype, parts in spans.items():
        parts.sort()
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(parts))
        vector = flat.weights.vectors[dtype]
        assert parts[-1][1] <= vector.numel() * vector.element_size()
    assert flat.weights.num_bytes == sum(v.numel() * v.element_size() for v in flat.weights.vectors.values())


def test_tied_parameters_have_one_place():
    module = Assorted()
    flat = FlatModule(module)
    assert module.head.weight is module.embedding.weight
    flat.weights.vectors[torch.float32].fill_(2.5)
    assert (module.embedding.weight == 2.5).all()
    untied = Assorted()
    untied.head.weight = nn.Parameter(torch.zeros(5, 3))
    # 15 numbers take 60 bytes, hence one more place of 16.
    assert len(FlatModule(untied).weights.vectors[torch.float32]) - len(flat.weights.vectors[torch.float32]) == 16


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9), lambda p: torch.optim.Adam(p)])
def test_optimiser_steps_are_the_ordinary_module_s_and_write_through(make):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    ordinary = copy.deepcopy(module)
    flat = FlatModule(module)
    batches = torch.randn(5, 16, 4)
    for one in (module, ordinary):
        optimizer = make(one.parameters())
        for batch in batches:
            optimizer.zero_grad()
            one(batch).square().mean().backward()
            optimizer.step()
    for name, value in ordinary.state_dict().items():
        assert torch.equal(module.state_dict()[name], value), name
    again = FlatModule(copy.deepcopy(ordinary))
    assert flat.collect().equal(again.weights)


def test_load_gives_the_module_other_weights_and_keeps_the_source():
    module = Assorted()
    flat = FlatModule(module)
    other = flat.weights.clone()
    other.vectors[torch.float32].fill_(3.0)
    other.vectors[torch.int64].fill_(11)
    flat.load(other)
    assert (module.convolution.weight == 3).all()
    assert module.norm.num_batches_tracked == 11
    with torch.no_grad():
        module.scalar.add_(1)
    assert (other.vectors[torch.float32] == 3).all()
    assert not flat.weights.equal(other)


def test_a_buffer_replaced_by_assignment_comes_back_to_its_place():
    module = nn.Module()
    module.register_buffer("mean", torch.zeros(3))
    module.register_buffer("count", torch.tensor(0))
    flat = FlatModule(module)
    module.mean = 0.5 * module.mean + torch.tensor([1.0, 2.0, 3.0])
    module.count = module.count + 1
    weights = flat.collect()
    assert weights.vectors[torch.float32][:3].tolist() == [1, 2, 3]
    assert weights.vectors[torch.int64][0] == 1
    weights.vectors[torch.float32].fill_(8)
    assert module.mean.tolist() == [8, 8, 8]


def test_what_was_assigned_stays_its_owner_s():
    """A batch that a module remembers in a buffer is not overwritten by the next client's weights."""
    module = nn.Module()
    module.register_buffer("last", torch.zeros(2))
    flat = FlatModule(module)
    initial = flat.weights.clone()
    batch = torch.tensor([4.0, 5.0])
    module.last = batch
    assert flat.collect().vectors[torch.float32][:2].tolist() == [4, 5]
    flat.load(initial)
    assert batch.tolist() == [4, 5]
    assert module.last.tolist() == [0, 0]


@pytest.mark.parametrize("which", ["first", "second"])
def test_tied_buffers_stay_tied_when_either_is_replaced(which):
    module = nn.Module()
    module.first, module.second = nn.Module(), nn.Module()
    shared = torch.zeros(2)
    module.first.register_buffer("mean", shared)
    module.second.register_buffer("mean", shared)
    flat = FlatModule(module)
    getattr(module, which).mean = torch.tensor([1.0, 2.0])
    flat.collect()
    assert module.first.mean is module.second.mean
    assert module.first.mean.tolist() == [1, 2]


def test_a_buffer_replaced_by_a_view_of_itself_or_of_another_type():
    module = nn.Module()
    module.register_buffer("matrix", torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    flat = FlatModule(module)
    module.matrix = module.matrix.T
    flat.collect()
    assert flat.weights.vectors[torch.float32][:4].tolist() == [1, 3, 2, 4]
    assert module.matrix.is_contiguous()
    module.matrix = torch.tensor([[5, 6], [7, 8]])
    flat.collect()
    assert module.matrix.dtype == torch.float32
    assert module.matrix.tolist() == [[5, 6], [7, 8]]


def test_parameters_whose_data_was_exchanged_are_mended():
    module = nn.Linear(2, 2, bias=False)
    flat = FlatModule(module)
    module.weight.data = torch.eye(2)
    assert flat.collect().vectors[torch.float32][:4].tolist() == [1, 0, 0, 1]
    module.weight = nn.Parameter(torch.full((2, 2), 6.0))
    flat.collect()
    flat.weights.vectors[torch.float32].zero_()
    assert (module.weight == 0).all()


def test_a_module_without_tensors():
    flat = FlatModule(nn.ReLU())
    assert flat.weights.vectors == {}
    assert flat.collect().vectors == {}
    assert flat.weights.num_bytes == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_combination_in_half_precision_is_rounded_once(dtype):
    values = torch.randn(512, generator=torch.Generator().manual_seed(0)).to(dtype)
    others = torch.randn(512, generator=torch.Generator().manual_seed(1)).to(dtype)
    module = nn.ParameterList([values])
    flat = FlatModule(module)
    spans, start = flat.spans(), flat.weights.clone()
    other = Weights({dtype: others.clone()})
    for share in (0.1, 0.3, 0.7):
        mixed = linear_combination(start, [(1 - share, start), (share, start)], spans)
        assert mixed.equal(start)
        exact = ((1 - share) * values.double() + share * others.double()).to(dtype)
        found = linear_combination(start, [(1 - share, start), (share, other)], spans).vectors[dtype]
        # A sum in single precision differs only where the exact one lies between two numbers.
        assert (found != exact).float().mean() < 0.05


def test_a_combination_has_its_base_elsewhere_or_zero():
    flat = FlatModule(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]))
    trained = [span for span in flat.spans() if span.name.startswith("1.")]
    start, base = flat.weights.clone(), flat.weights.clone()
    base.vectors[torch.float32].add_(1.0)
    for found, elsewhere in (
        (linear_combination(base, [(2.0, start), (-0.5, start)], trained), base),
        (linear_combination(None, [(2.0, start), (-0.5, start)], trained), None),
    ):
        for span in flat.spans():
            own = 1.5 * start.part(span) if span in trained else 0 * start.part(span)
            own = elsewhere.part(span) if elsewhere is not None and span not in trained else own
            torch.testing.assert_close(found.part(span), own)
