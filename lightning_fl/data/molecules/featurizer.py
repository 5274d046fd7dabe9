"""Molecules as graphs: atom and bond features of the models, in their order.

Atom features (``ATOM_DIM`` columns, float32; every group but the last three is one-hot):

======================  =======  ==============================================================
group                   columns  values
======================  =======  ==============================================================
element                 13       B, C, N, O, F, Si, P, S, Cl, Se, Br, I, any other
degree                  7        0 to 5, 6 or more (bonded atoms, hydrogens left out)
hydrogens               5        0 to 3, 4 or more (implicit and explicit)
formal charge           5        -2 or less, -1, 0, +1, +2 or more (elementary charges)
hybridisation           6        sp, sp2, sp3, sp3d, sp3d2, any other
aromatic                1        yes
in a ring               1        yes
chirality               2        R, S; neither for an atom that is no (assigned) centre
======================  =======  ==============================================================

Bond features (``BOND_DIM`` columns): type (5: single, double, triple, aromatic, any other), conjugated (1), in a ring
(1), stereo (2: Z or cis, E or trans; neither where there is none).

Chirality is the CIP label, not RDKit's winding tag, so that features do not depend on the order of the atoms.
"""

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_fl.core.environment import usable_cores
from lightning_fl.core.errors import DataError
from lightning_fl.data.molecules import codes
from lightning_fl.data.molecules.codes import ATOM_GROUPS, BOND_GROUPS, Codes, read_codes

#: To be increased whenever a feature changes; cached codes of other versions are not used.
FEATURIZER_VERSION = "1"

#: Width of the atom features.
ATOM_DIM = sum(size - first for size, first in ATOM_GROUPS)
#: Width of the bond features.
BOND_DIM = sum(size - first for size, first in BOND_GROUPS)
_BLOCK = 256
#: Number of molecules, 1 s of work, from which further processes are started.
_PARALLEL_FROM = 5000
#: Most processes; each takes 100 MB.
_MAX_WORKERS = 8


@dataclass(frozen=True)
class MoleculeGraphs:
    """n molecules as flat tensors; molecule i has the atoms ``atom_ptr[i]:atom_ptr[i + 1]``, and such edges."""

    x: Tensor  #: float32 [V, ATOM_DIM]
    edge_index: Tensor  #: int64 [2, E], both directions of a bond side by side, atoms numbered from 0 in each molecule
    edge_attr: Tensor  #: float32 [E, BOND_DIM]
    atom_ptr: Tensor  #: int64 [n + 1]
    edge_ptr: Tensor  #: int64 [n + 1]


def molecule_graphs(codes: Codes) -> MoleculeGraphs:
    """Make the graphs that models get. An unreadable molecule becomes a graph without atoms."""
    ends = torch.from_numpy(codes.ends)
    both_ways = torch.stack([ends, ends.flip(1)], dim=1).reshape(-1, 2)
    return MoleculeGraphs(
        x=_one_hot_groups(codes.atoms, ATOM_GROUPS),
        edge_index=both_ways.T.long().contiguous(),
        edge_attr=_one_hot_groups(codes.bonds, BOND_GROUPS).repeat_interleave(2, dim=0),
        atom_ptr=_pointers(codes.num_atoms),
        edge_ptr=_pointers(2 * codes.num_bonds),
    )


def encode_smiles(smiles: Iterable[str], workers: int | None = None) -> Codes:
    """Read n molecules with RDKit's default sanitisation; one without atoms, or unreadable, gets ``num_atoms`` 0.

    ``workers`` is the number of processes, this one included; ``None`` for one, or one per core from 5,000 molecules
    on. The result is the same.

    Example:
        >>> graphs = molecule_graphs(encode_smiles(["CCO", "C"]))
        >>> graphs.x.shape, graphs.edge_index.tolist(), graphs.atom_ptr.tolist()
        (torch.Size([4, 40]), [[0, 1, 1, 2], [1, 0, 2, 1]], [0, 3, 4])
    """
    parts = zip(*chain([read_codes([])], read_blocks(smiles, workers)), strict=True)
    return Codes(*(np.concatenate(part) for part in parts))


def _one_hot_groups(codes: NDArray[np.uint8], groups: tuple[tuple[int, int], ...]) -> Tensor:
    """Codes uint8 ``[V, groups]`` to float32 ``[V, columns]``."""
    chosen, columns = torch.from_numpy(codes), torch.zeros(len(codes), sum(size - first for size, first in groups))
    start = 0
    for group, (size, first) in enumerate(groups):
        columns[:, start : start + size - first] = chosen[:, group : group + 1] == torch.arange(first, size)
        start += size - first
    return columns


def _pointers(counts: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], counts.cumsum()])).long()


def read_blocks(smiles: Iterable[str], workers: int | None = None) -> Iterator[Codes]:
    """Read molecules in their order, lazily, one block at a time.

    ``workers`` counts the processes, this one included; ``None``: one per core of this rank, or one for few molecules.
    """
    texts = iter(smiles)
    if workers is None:
        first = list(islice(texts, _PARALLEL_FROM))
        workers = 1 if len(first) < _PARALLEL_FROM else _count_own_cores()
        texts = chain(first, texts)
    blocks = iter(lambda: list(islice(texts, _BLOCK)), [])
    return map(read_codes, blocks) if workers == 1 else _read_in_parallel(blocks, workers - 1)


def _count_own_cores() -> int:
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    return max(1, min(usable_cores() // ranks, _MAX_WORKERS))


def _read_in_parallel(blocks: Iterator[list[str]], num_processes: int) -> Iterator[Codes]:
    """Read in further processes, and in this one while all of them have enough to do."""
    processes: list[subprocess.Popen[bytes]] = []
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    pending: deque[Future[Codes]] = deque()
    pool = ThreadPoolExecutor(num_processes)
    try:
        for _ in range(num_processes):
            processes.append(_start())
            idle.put(processes[-1])
        for block in blocks:
            if sum(not future.done() for future in pending) < 2 * num_processes:
                pending.append(pool.submit(_read_remotely, idle, block))
            else:
                pending.append(Future())
                pending[-1].set_result(read_codes(block))
            while pending and pending[0].done():
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # an interrupt, too
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        pool.shutdown()
        for process in processes:
            process.communicate()


def _start() -> subprocess.Popen[bytes]:
    # -P: files next to this one have the names of standard modules. A new session: Ctrl-C must reach only this process,
    # which then ends the others.
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(codes.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )


def _read_remotely(idle: "SimpleQueue[subprocess.Popen[bytes]]", block: list[str]) -> Codes:
    process = idle.get()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(block).encode() + b"\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = b""
    finally:
        idle.put(process)  # a dead one too, so that no thread waits for it forever
    if not answer.endswith(b"\n"):
        what = f"a process that reads molecules ended with exit code {process.wait()}; see its output above"
        raise DataError(f"{what}. If memory ran out, allow fewer processes (taskset, or the cores of the job).")
    return Codes.of_line(answer)
