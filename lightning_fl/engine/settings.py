"""What a run is told about training: amounts, optimisation, failures, logging. ``FederatedTrainer`` explains each."""

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Settings"]


@dataclass(kw_only=True)
class Settings:
    """The arguments of :class:`~lightning_fl.FederatedTrainer` that the engine goes by, with its defaults."""

    max_rounds: int = 100
    local_epochs: int = 1
    local_steps: int | None = None
    check_val_every_n_rounds: int = 1
    limit_val_clients: int | None = 1000
    gradient_clip_val: float | None = None
    gradient_clip_algorithm: Literal["norm", "value"] | None = None
    accumulate_grad_batches: int = 1
    stacked_clients: int = 1
    optimizer_state: Literal["fresh", "keep"] = "fresh"
    scheduler_interval: Literal["auto", "step", "round"] = "auto"
    on_client_error: Literal["fail", "skip"] = "fail"
    log_every_n_steps: int = 0
    log_per_client: bool | None = None
    seed: int = 0
    num_threads: int | None = 1
    channels_last: bool = False
    deterministic: bool = False
    compile: bool | dict[str, Any] = False
    fused_optimizers: bool = False
    default_root_dir: str = "runs"

    def evaluates_after(self, num_rounds: int) -> bool:
        """Whether clients' models are evaluated when so many rounds are done."""
        every = self.check_val_every_n_rounds
        return every > 0 and (num_rounds % every == 0 or num_rounds == self.max_rounds)
