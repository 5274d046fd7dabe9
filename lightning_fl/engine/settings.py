"""Settings of a run that the engine reads: amounts, optimisation, failures, logging."""

import os
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Interval

from lightning_fl.core.seeding import run_seed
from lightning_fl.core.validation import Count, Positive, Size, documented

#: Metadata of a setting that does not change the result: a resumed run may have another value.
NOT_DECIDING = {"decides": False}
#: Metadata of a setting that may also differ between the ranks of a run.
PER_RANK = {"decides": False, "shared": False}
#: Settings that may be "auto".
AUTOMATIC = ("channels_last", "fused_optimizers")


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class Settings:
    """Settings of a run, each declared once: type, range, default, meaning, and whether it decides the result.

    A field is an argument of :class:`~lightning_fl.FederatedTrainer`, a key of recipes and an attribute of trainers.
    """

    max_rounds: Count = field(default=100, metadata=NOT_DECIDING)
    """rounds of the run."""
    local_epochs: Count = None  # type: ignore[assignment]
    """passes over a client's data per round (E). 1 if neither this nor ``local_steps`` is given."""
    local_steps: Count | None = None
    """optimiser steps per client and round (tau), instead of epochs."""
    check_val_every_n_rounds: Size = 1
    """evaluate every client's model on its validation data every n rounds and after the last; 0 for never."""
    limit_val_clients: Count | None = 1000
    """``fit`` validates at most this many clients, a sample drawn once by the seed; ``None`` for all. ``validate``
    takes all."""
    limit_test_clients: Count | None = field(default=None, metadata=NOT_DECIDING)
    """``test`` evaluates at most this many clients, a sample drawn by the seed; ``None`` for all."""
    gradient_clip_val: Positive | None = None
    """clip gradients at this norm or value."""
    gradient_clip_algorithm: Literal["norm", "value"] | None = None
    """"norm" (default) or "value"."""
    accumulate_grad_batches: Count = 1
    """batches per optimiser step."""
    stacked_clients: Count = 1
    """clients that a process trains at once, as rows of stacked weights, in blocks of consecutive clients. Pays for
    small models; docs/lightning-support.md lists what it needs."""
    optimizer_state: Literal["auto", "fresh", "keep", "average"] = "auto"
    """"fresh" optimisers every round; "keep" a client's from its last turn; "average" their states like the weights, as
    local Adam does, for the clients of a model to begin with. "auto": averages where it can, else fresh; clients with a
    model of their own (DPFL) keep theirs."""
    scheduler_interval: Literal["auto", "step", "round"] = "auto"
    """step learning-rate schedulers by their own ``interval`` ("auto": "epoch" is a round), or all per local "step" or
    per "round"."""
    on_client_error: Literal["fail", "skip"] = "fail"
    """"fail" stops the run when a client's turn fails; "skip" leaves the client out of the round, with a warning, and
    renormalises the rest."""
    log_every_n_steps: Size = field(default=0, metadata=NOT_DECIDING)
    """also log single local steps of what is logged with ``on_step=True``; 0 for rounds only."""
    log_per_client: bool | None = field(default=None, metadata=NOT_DECIDING)
    """log every client's own curve; default up to 100 clients."""
    seed: Annotated[int, Interval(ge=0, le=2**64 - 1)] = None  # type: ignore[assignment]
    """seed of the run; default what ``seed_everything`` set, else 0."""
    num_threads: Count | None = field(default=1, metadata=PER_RANK)
    """torch threads per process, with and without a GPU; ``None`` leaves torch's. 1 by default: small models gain from
    processes, not from threads, and the same number of threads gives the same bits on any number of processes."""
    channels_last: bool | Literal["auto"] = "auto"
    """give images to the module in torch's channels-last memory format, in which convolutions and pooling are faster; a
    module that calls ``view`` on results of images needs ``reshape`` or ``flatten`` instead. Results are the same up to
    rounding. "auto": in training, where it is faster and the module works with it."""
    deterministic: bool = False
    """let torch use deterministic algorithms only, and cuDNN none that it has timed (needed for equal bits on GPUs)."""
    compile: bool | dict[str, Any] = False
    """compile the module's steps with ``torch.compile``: true, or its keyword arguments. ``fit`` and the others also
    accept a module that ``torch.compile`` made."""
    fused_optimizers: bool | Literal["auto"] = "auto"
    """take the steps of SGD, Adam, AdamW and Adagrad by torch's fused kernels, one for all weights. Results are the
    same up to rounding. "auto": on a CPU, Adam and AdamW of models with more than a quarter of a million weights."""
    default_root_dir: str | os.PathLike[str] = field(default=None, metadata=PER_RANK)  # type: ignore[assignment]
    """where runs are written, each in a folder ``version_N`` of its own; default ``./runs``."""

    def __post_init__(self) -> None:
        if self.local_epochs is None:
            self.local_epochs = 1
        if self.seed is None:
            self.seed = run_seed()
        self.default_root_dir = os.path.expanduser(self.default_root_dir or "runs")

    def evaluates_after(self, num_rounds: int) -> bool:
        every = self.check_val_every_n_rounds
        return every > 0 and (num_rounds % every == 0 or num_rounds == self.max_rounds)
