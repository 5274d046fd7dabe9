"""Hostile clients, ranks and strangers: nothing of theirs runs, nobody waits for ever, no model is poisoned unseen.

A client gives broken batches, losses, weights or numbers of samples; a rank sends what is no message; a stranger
connects to the ports of a run.
"""

import os
import pickle
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from fault_kinds import peers
from fault_kinds.damage import MARKER, executed
from fault_kinds.judging import LIMIT, error_lines
from fault_kinds.laboratory import Laboratory
from fault_kinds.outcome import BAD, GOOD, POOR, Outcome
from fault_kinds.ports import reserved_port
from fault_kinds.record import differences, summary_of, tensors
from fault_kinds.warm_python import Started

_CLIENT = """
import itertools, math, sys
import torch
from tiny import TinyModule, regression_set
from lightning_fl import FederatedTrainer, Silos
from lightning_fl.recipe.error_messages import exit_code

nan, inf = math.nan, math.inf

def batches(change=lambda x, y: (x, y), count=3):
    made = [change(*map(torch.clone, regression_set(8, 7 + i).tensors)) for i in range(count)]
    return torch.utils.data.DataLoader(made, batch_size=None)

class Endless:
    def __iter__(self):
        return itertools.cycle(batches())

class Raising:
    def __len__(self):
        return 3
    def __iter__(self):
        yield next(iter(batches()))
        raise OSError("the disk of this client is gone")

class Module(TinyModule):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        x = batch[0]
        if x.shape[0] != 7:  # the marks of the hostile client's batches
            return loss
        return {loss}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if batch[0].shape[0] == 7:
            {weights}

def main():
    good = [batches(count=2) for _ in range(2)]
    hostile = {data}
    trainer = FederatedTrainer(
        max_rounds=3, local_steps=3, accelerator="cpu", devices=1, enable_progress_bar=False, seed=5,
        default_root_dir="runs", on_client_error={on_error!r},
    )
    given = {{"good": good[0], "evil": hostile, "fine": good[1]}}
    trainer.fit(Module(), Silos(given, num_samples={samples}, split=(1.0, 0.0, 0.0)))
    return 0

sys.exit(exit_code(main))
"""

#: What a client gives: (data, loss, change of the weights, numbers of samples, may the run end well).
_SEVEN = "batches(lambda x, y: (x[:7], y[:7]))"
_CLIENTS: dict[str, tuple[str, str, str, str, bool]] = {
    **{
        f"features {value}": (f"batches(lambda x, y: (x * 0 + {value}, y))", "loss", "pass", "None", False)
        for value in ("nan", "inf", "1e38")
    },
    **{
        f"targets {value}": (f"batches(lambda x, y: (x, y * 0 + {value}))", "loss", "pass", "None", False)
        for value in ("nan", "-inf", "1e30")
    },
    "features of another width": ("batches(lambda x, y: (x.repeat(1, 2), y))", "loss", "pass", "None", False),
    "features of another type": ("batches(lambda x, y: (x.to(torch.int64), y))", "loss", "pass", "None", False),
    "fewer targets": ("batches(lambda x, y: (x, y[:3]))", "loss", "pass", "None", False),
    "text": ("batches(lambda x, y: 'text')", "loss", "pass", "None", False),
    "None": ("batches(lambda x, y: None)", "loss", "pass", "None", False),
    "an empty batch": ("batches(lambda x, y: (x[:0], y[:0]))", "loss", "pass", "None", False),
    "no batches": ("batches(count=0)", "loss", "pass", "None", False),
    "an endless loader": ("Endless()", "loss", "pass", "None", True),
    "a loader that fails": ("Raising()", "loss", "pass", "None", False),
    **{
        f"a loss {loss}": (_SEVEN, loss, "pass", "None", False)
        for loss in ("loss * nan", "loss * inf", "'text'", "loss.detach()", "loss.expand(2)", "loss * 1e36", "(1, 2)")
    },
    **{
        f"weights {value}": (_SEVEN, "loss", f"self.linear.weight.data.fill_({value})", "None", False)
        for value in ("nan", "inf", "1e30", "-1e38")
    },
    "weights of another shape": (_SEVEN, "loss", "self.linear.weight.data = torch.zeros(1, 9)", "None", False),
    **{
        f"{value} samples": (_SEVEN, "loss", "pass", f"[24, {value}, 24]", value in ("10**18", "24"))
        for value in ("0", "-5", "10**18", "10**40", "nan", "inf", "2.5", "'7'", "True", "None")
    },
}


def _client(lab: Laboratory, seed: int, draws: random.Random) -> Outcome:
    folder = lab.folder("clients", seed)
    name = draws.choice(list(_CLIENTS))
    data, loss, weights, samples, well = _CLIENTS[name]
    on_error = draws.choice(["fail", "skip"])
    case = f"a client gives {name}, on_client_error={on_error}"
    code = _CLIENT.format(data=data, loss=loss, weights=weights, samples=samples, on_error=on_error)
    command = lab.start(["-c", code], folder)
    command.wait(LIMIT)
    return Outcome("clients", seed, *_judged(command, folder, ["evil", "samples"], case, on_error == "skip" or well))


def _judged(command: Started, folder: Path, names: list[str], case: str, well: bool) -> tuple[str, str, str]:
    """The verdict, the case and the problem; ``well``: exit code 0 is right if all models are sound."""
    if executed(folder):
        return BAD, case, "THE PAYLOAD WAS EXECUTED"
    if command.code is None:
        return BAD, case, f"hang: {command.err[-300:]}"
    if command.code < 0:
        return BAD, case, f"died of signal {-command.code}"
    if poisoned := _poisoned(folder):
        return BAD, case, f"{poisoned} is not finite; said: {command.err[-300:]}"
    if "Traceback" in command.err:
        return POOR, case, f"traceback: {command.err[-300:]}"
    said = " ".join(error_lines(command))
    if command.code == 0:
        return (
            (GOOD, case, "") if well or any(name in said for name in names) else (BAD, case, f"exit 0: {said[-200:]}")
        )
    if len(error_lines(command)) > 3:
        return POOR, case, f"{len(error_lines(command))} lines: {said[:400]}"
    if not any(name in said for name in names):
        return POOR, case, f"names none of {names}: {said[:400]}"
    return GOOD, case, said


def _poisoned(folder: Path) -> str:
    """A model or checkpoint below a folder that holds what is no number; empty if there is none."""
    for path in sorted(folder.rglob("*.ckpt")):
        content: Any = tensors(path)
        vectors = list(content.get("state_dict", {}).values())
        vectors += [vector for model in content.get("models", []) for vector in model.values()]
        if not all(torch.isfinite(vector).all() for vector in vectors if vector.is_floating_point()):
            return path.name
    return ""


# -- ranks -------------------------------------------------------------------------------------------------------

_RANK = """
import os, pickle, random, runpy, sys, torch
from lightning_fl.strategies import federated, rank_exchange
from lightning_fl.core.wire_format import encode

draws = random.Random({seed})

class Payload:
    def __reduce__(self):
        return os.mkdir, ({marker!r},)

own, count = rank_exchange._message, 0

def flipped(message):
    changed = bytearray(message)
    for _ in range(draws.randint(1, 8)):
        changed[draws.randrange(len(changed))] ^= 1 << draws.randrange(8)
    return bytes(changed)

def deep(depth):
    return b"\\x91" * depth + b"\\xc0"

HOSTILE = dict(
    pickle=lambda m: pickle.dumps(Payload()),
    noise=lambda m: draws.randbytes(len(m)),
    flipped=flipped,
    cut=lambda m: m[: draws.randrange(len(m))],
    empty=lambda m: b"",
    deep=lambda m: deep(100_000),
    other=lambda m: encode(draws.choice([None, 3, "text", [1, 2], {{0: None}}, {{99: 1}}, {{-1: 2}}, {{"a": 1}}])),
    large=lambda m: b"\\xc6\\xff\\xff\\xff\\xff",
    tensor=lambda m: encode({{1: torch.full((3,), float("nan"))}}),
)

def message(value):
    global count
    count += 1
    return HOSTILE[{how!r}](own(value)) if count >= {at} else own(value)

rank_exchange._message = message
really = federated.FederatedStrategy.all_reduce

def all_reduce(self, tensor, *args, **kwargs):
    if {how!r} == "poison" and tensor.is_floating_point():
        tensor = tensor * float("nan")
    return really(self, tensor, *args, **kwargs)

HOSTILE["poison"] = lambda m: m
federated.FederatedStrategy.all_reduce = all_reduce
sys.path.insert(0, os.path.dirname({script!r}))
runpy.run_path({script!r}, run_name="__main__")
"""


def _rank(lab: Laboratory, seed: int, draws: random.Random) -> Outcome:
    folder = lab.folder("clients", seed)
    peers.prepare(folder)
    how = draws.choice(["pickle", "noise", "flipped", "cut", "empty", "deep", "other", "large", "tensor", "poison"])
    at, hostile = draws.randint(1, 25), draws.randrange(2)
    case = f"rank {hostile} sends {how} from message {at} on"
    code = _RANK.format(seed=seed, marker=MARKER, how=how, at=at, script=str(peers.SCRIPT))
    with reserved_port() as port:
        both = peers.start(lab, folder, port, programs={hostile: ["-c", code]})
        other = both[1 - hostile]
        if not other.wait(peers.BOUND):
            return Outcome("clients", seed, BAD, case, f"the other hangs: {other.err[-300:]}")
        both[hostile].wait(peers.BOUND)
    names = [f"rank {hostile}", "client", "silo", "weights"]
    machine = folder / f"machine_{1 - hostile}"
    # What a rank says of its own clients, within a message's form, is believed.
    believed = how in ("flipped", "cut", "noise", "other", "tensor", "poison")
    return Outcome("clients", seed, *_judged(other, machine, names, case, believed))


# -- strangers ---------------------------------------------------------------------------------------------------


class _Payload:
    def __reduce__(self) -> Any:
        return os.mkdir, (MARKER,)


_GREETINGS = {
    "noise": lambda draws: draws.randbytes(4096),
    "a page's request": lambda draws: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a pickle": lambda draws: pickle.dumps(_Payload()),
    "a huge length": lambda draws: b"\xff" * 7 + b"\x7f" + b"x" * 100,
    "zeros": lambda draws: bytes(100_000),
    "nothing": lambda draws: b"",
    "a hello of TLS": lambda draws: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draws.randbytes(32),
}


def _stranger(lab: Laboratory, seed: int, draws: random.Random) -> Outcome:
    folder = lab.folder("clients", seed)
    expected, _ = peers.undisturbed(lab)
    peers.prepare(folder)
    greeting = draws.choice(list(_GREETINGS))
    closes, early = draws.random() < 0.5, draws.random() < 0.5
    case = (
        f"a stranger {'calls' if closes else 'holds'} every port{' from before the start' if early else ''}: {greeting}"
    )
    with reserved_port() as port:
        both: list[Started] = []
        over = threading.Event()
        kept: list[socket.socket] = []

        def call() -> None:
            while not over.is_set():
                for target in {int(port), *_listening(both)}:
                    try:
                        line = socket.create_connection(("127.0.0.1", target), timeout=0.2)
                        line.sendall(_GREETINGS[greeting](draws))
                    except OSError:
                        continue
                    line.close() if closes or len(kept) > 300 else kept.append(line)
                over.wait(0.01)

        caller = threading.Thread(target=call, daemon=True)
        if early:
            caller.start()
        both += peers.start(lab, folder, port)
        if not early:
            time.sleep(draws.random() * 0.5)
            caller.start()
        ended = all(one.wait(peers.BOUND) for one in both)
        over.set()
        caller.join()
        for line in kept:
            line.close()
    if executed(folder):
        return Outcome("clients", seed, BAD, case, "THE PAYLOAD WAS EXECUTED")
    if not ended:
        return Outcome("clients", seed, BAD, case, f"hang: {both[0].err[-200:]} / {both[1].err[-200:]}")
    if all(one.code == 0 for one in both):
        lines = differences(expected, peers.record(folder))
        return Outcome("clients", seed, BAD if lines else GOOD, case, summary_of(lines))
    said = " / ".join(" ".join(error_lines(one)) for one in both)
    clear = all("Traceback" not in one.err and len(error_lines(one)) <= 3 for one in both)
    return Outcome("clients", seed, GOOD if clear else POOR, case, said[-500:])


def _listening(commands: list[Started]) -> list[int]:
    found = []
    for command in commands:
        try:
            found += [c.laddr.port for c in psutil.Process(command.pid).net_connections("tcp") if c.status == "LISTEN"]
        except psutil.Error:
            continue
    return found


def trial(lab: Laboratory, seed: int) -> Outcome:
    """One hostile client, rank or stranger."""
    draws = random.Random(f"clients {seed}")
    return draws.choices([_client, _rank, _stranger], [5, 3, 2])[0](lab, seed, draws)
