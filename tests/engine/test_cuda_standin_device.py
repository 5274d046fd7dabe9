"""The CUDA device that tests have without a GPU: what it refuses, what it counts, and that nothing of it stays."""

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_standin.device import StandIn
from cuda_standin.operations import Refused
from cuda_standin.plugin import _LEFT_ON_THE_CPU
from torch import Tensor, nn

GPU = "cuda"


def refused(standin: StandIn, match: str, call: Callable[[], Any], kind: type[Exception] = Refused) -> None:
    """The device refuses, and has written it down."""
    with pytest.raises(kind, match=match):
        call()
    assert len(standin.refusals) == 1
    standin.refusals.clear()


def kinds(standin: StandIn) -> dict[str, int]:
    """How often the host waited since the last call, by kind."""
    found: dict[str, int] = {}
    for wait, count in standin.waits.items():
        found[wait.kind] = found.get(wait.kind, 0) + count
    standin.waits.clear()
    return found


def test_results_lie_where_operands_do(cuda_standin: StandIn) -> None:
    x = torch.arange(6.0, device=GPU).reshape(2, 3)
    on_device = [
        x[0],
        x + 1,
        2 * x,
        x + torch.tensor(1.0),
        x.t().contiguous(),
        x.new_zeros(2),
        torch.zeros_like(x),
        torch.tensor([1.0], device=GPU),
        torch.as_tensor(x),
        torch.rand(2, device=GPU),
        nn.functional.one_hot(torch.tensor([0, 2], device=GPU), 3),
        x.index_add(0, torch.tensor([0], device=GPU), x[:1]),
        torch.cat([x, x]),
        x.unique(),
        torch.vmap(lambda row: row.softmax(0))(x),
        x.to_sparse(),
        x.to_sparse().to_dense(),
        torch.ones(2, 3).to(x),
        nn.Linear(3, 2).to(GPU)(x),
        copy.deepcopy(x),
        x.float().double(),
    ]
    assert {str(value.device) for value in on_device} == {"cuda:0"}
    assert all(value.is_cuda and not value.is_cpu for value in on_device)
    on_host = [x.cpu(), x.to("cpu"), torch.zeros(2), torch.ones_like(x, device="cpu"), torch.ones(1).to(x.cpu())]
    assert {str(value.device) for value in on_host} == {"cpu"}
    assert x.data_ptr() == x[0].data_ptr() == x.view(-1).data_ptr() != x.cpu().data_ptr()


def test_gradients_find_their_way_between_the_devices(cuda_standin: StandIn) -> None:
    weight = torch.ones(3, requires_grad=True)
    (weight.to(GPU) * torch.arange(3.0, device=GPU)).sum().backward()
    assert weight.grad is not None
    assert weight.grad.device.type == "cpu"
    assert weight.grad.tolist() == [0.0, 1.0, 2.0]
    layer = nn.Linear(2, 1).to(GPU)
    layer(torch.ones(1, 2, device=GPU)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.is_cuda


MIXED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda on, off: on + off,
    "the host's, in place": lambda on, off: off.add_(on.sum()),
    "product": lambda on, off: on @ off,
    "cat": lambda on, off: torch.cat([on, off]),
    "stack of numbers": lambda on, off: torch.stack([on[0, 0], off[0, 0]]),
    "equal": lambda on, off: torch.equal(on, off),
    "gather": lambda on, off: on.gather(0, off.long()),
    "index of the device into the host's": lambda on, off: off[on[0].long()],
    "values of the host": lambda on, off: on.index_put_((torch.tensor([0]),), off[:1]),
    "linear": lambda on, off: nn.functional.linear(on, off),
    "loss": lambda on, off: nn.functional.mse_loss(on, off),
    "several at once": lambda on, off: torch._foreach_add_([on], [off]),
    "vmap": lambda on, off: torch.vmap(lambda a, b: a + b)(on, off),
}


@pytest.mark.parametrize("name", MIXED)
def test_operands_on_two_devices_are_refused(name: str, cuda_standin: StandIn) -> None:
    refused(cuda_standin, "aten", lambda: MIXED[name](torch.ones(2, 2, device=GPU), torch.ones(2, 2)))


def test_generators_arrays_and_pickles_of_another_device_are_refused(cuda_standin: StandIn) -> None:
    x = torch.ones(2, device=GPU)
    draws = torch.Generator()
    refused(cuda_standin, "generator of cuda, found one of cpu", lambda: torch.rand(2, device=GPU, generator=draws))
    refused(cuda_standin, "generator of cuda", lambda: x.normal_(generator=draws))
    own = torch.Generator(GPU).manual_seed(1)
    assert isinstance(own, torch.Generator)
    assert isinstance(draws, torch.Generator)
    refused(cuda_standin, "generator of cpu, found one of cuda", lambda: torch.randperm(2, generator=own))
    torch.rand(2, device=GPU, generator=own)
    refused(cuda_standin, "Use Tensor.cpu", x.numpy, TypeError)
    refused(cuda_standin, "Use Tensor.cpu", lambda: np.asarray(x), TypeError)
    refused(cuda_standin, "is pickled", lambda: pickle.dumps([x]), RuntimeError)
    refused(cuda_standin, "is pickled", lambda: pickle.dumps(nn.Linear(1, 1).to(GPU)), RuntimeError)
    pickle.dumps(x.cpu())


WAITS: dict[str, tuple[Callable[[Tensor], Any], dict[str, int]]] = {
    "arithmetic": (lambda x: (x * 2 + 1).softmax(0).sum() / x.mean(), {}),
    "item": (lambda x: x[0].item(), {"_local_scalar_dense": 1}),
    "truth": (lambda x: bool(x[0] > 0), {"_local_scalar_dense": 1}),
    "tolist": (lambda x: x.tolist(), {"tolist": 1}),
    "host": (lambda x: x.cpu(), {"D2H": 1}),
    "device": (lambda x: torch.ones(2).to(GPU), {"H2D": 1}),
    "data": (lambda x: torch.tensor([1.0], device=GPU), {"H2D": 1}),
    "pinned": (lambda x: torch.ones(2).pin_memory().to(GPU, non_blocking=True), {}),
    "pinned, but waiting": (lambda x: torch.ones(2).pin_memory().to(GPU), {"H2D": 1}),
    "not waiting, but not pinned": (lambda x: torch.ones(2).to(GPU, non_blocking=True), {"H2D": 1}),
    "copy to the host": (lambda x: torch.ones(4).copy_(x), {"D2H": 1}),
    "copies": (lambda x: torch._foreach_copy_([x, x], [torch.ones(4), x]), {"H2D": 1}),
    "mask": (lambda x: x[x > 0], {"mask": 1}),
    "fill by mask": (lambda x: x.masked_fill_(x > 0, 0.0), {}),
    "index of the host": (lambda x: x[torch.tensor([0, 1])], {"H2D": 1}),
    "index": (lambda x: x.index_select(0, torch.zeros(2, dtype=torch.long, device=GPU)), {}),
    "nonzero": (lambda x: x.nonzero(), {"nonzero": 1}),
    "unique": (lambda x: x.unique(), {"_unique2": 1}),
    "equal": (lambda x: torch.equal(x, x), {"equal": 1}),
    "repeats": (lambda x: x.repeat_interleave(x.long() + 1), {"repeat_interleave": 1}),
    "repeats of known number": (lambda x: x.repeat_interleave(x.long() + 1, output_size=10), {}),
    "one-hot of known number": (lambda x: nn.functional.one_hot(x.long(), 9), {}),
    "clipping": (lambda x: nn.utils.clip_grad_norm_(_with_gradient(x), 1.0), {}),
    "synchronize": (lambda x: torch.cuda.synchronize(), {"synchronize": 1}),
    "optimiser": (lambda x: torch.optim.Adam([_with_gradient(x)]).step(), {}),
}


def _with_gradient(x: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(x.clone())
    parameter.grad = x.clone()
    return parameter


@pytest.mark.parametrize("name", WAITS)
def test_waits_of_the_host_are_counted(name: str, cuda_standin: StandIn) -> None:
    call, expected = WAITS[name]
    x = torch.arange(4.0).to(GPU)
    assert set(kinds(cuda_standin)) == {"H2D"}
    call(x)
    assert kinds(cuda_standin) == expected


def test_a_wait_is_of_a_line(cuda_standin: StandIn) -> None:
    from lightning_fl.engine.weights.flat import Weights

    Weights({torch.float32: torch.ones(2)}).to_(torch.device(GPU))
    (wait,) = cuda_standin.waits
    assert wait.kind == "H2D"
    assert wait.line.startswith("engine/weights/flat.py:")
    assert cuda_standin.waits_in("engine/weights") == {wait: 1}
    assert not cuda_standin.waits_in("engine/batches")


def test_the_device_draws_from_a_generator_of_its_own(cuda_standin: StandIn) -> None:
    torch.manual_seed(3)
    on_host, on_device = torch.rand(2), torch.rand(2, device=GPU)
    assert torch.equal(on_host, on_device.cpu())  # of the same seed
    state = torch.cuda.get_rng_state()
    first = nn.functional.dropout(torch.ones(50, device=GPU)).cpu()
    second = nn.functional.dropout(torch.ones(50, device=GPU)).cpu()
    assert not torch.equal(first, second)
    torch.cuda.set_rng_state_all([state])
    assert torch.equal(first, nn.functional.dropout(torch.ones(50, device=GPU)).cpu())
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), on_host)


def test_other_threads_have_the_device_too(cuda_standin: StandIn) -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append((torch.ones(2, device=GPU) + 1).device.type))
    thread.start()
    thread.join()
    assert found == ["cuda"]


def test_autocast_of_the_device_casts(cuda_standin: StandIn) -> None:
    x = torch.ones(2, 2, device=GPU)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cuda")
        made = x @ x
    assert (made.dtype, made.device.type) == (torch.bfloat16, "cuda")


def test_streams_and_memory_answer(cuda_standin: StandIn) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
    cuda_standin.free_memory = 5
    assert torch.cuda.mem_get_info() == (5, cuda_standin.total_memory)
    assert (torch.cuda.device_count(), torch.cuda.current_device()) == (1, 0)


def test_nothing_of_it_stays() -> None:
    def state() -> list[Any]:
        names = ("device", "to", "cpu", "numpy", "tolist", "is_cuda", "pin_memory")
        own = [vars(torch.Tensor).get(name) for name in names]
        return [*own, torch.Generator, threading.Thread.run, *(vars(torch.cuda).values()), torch.autocast.__init__]

    before = state()
    with StandIn() as standin:
        x = torch.ones(2, device=GPU)
        assert state() != before
    assert state() == before
    assert x.device.type == "cpu"
    torch.cat([x, torch.ones(1)])
    assert not standin.refusals


@pytest.mark.parametrize("name", _LEFT_ON_THE_CPU)
def test_what_stays_on_the_cpu_is_there(name: str) -> None:
    """A test's name is whole where its case follows, else the beginning of one."""
    file, _, test = name.partition("::")
    text = (Path(__file__).parents[2] / file).read_text()
    function, case, _ = test.partition("[")
    assert not test or f"def {function}{'(' if case else ''}" in text
