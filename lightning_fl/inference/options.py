"""Options of predictions, declared once for Python and for the command line. Does not import torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt, doc

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, check_fields, documented

CalibrationMethod = Literal["platt", "isotonic"]


@documented
@dataclass(frozen=True, kw_only=True)
class PredictionOptions:
    """Options of :class:`~lightning_fl.inference.predict.RunPredictor` and of ``lightning-fl predict``."""

    model: str | None = None
    """a client's name; shared or shared_K; best: the client model with the best validation result; all: every model in
    columns of its own, and their mean; snapshots: the same for the shared model after several rounds (default: the
    shared model)"""
    smiles_column: str | None = None
    """column of SMILES (default: the run's)"""
    similarity: bool = False
    """add the Tanimoto similarity to the nearest training molecule; reads the run's data"""
    interval: Annotated[float, Gt(0), Lt(1), doc("such as 0.9")] | None = None
    """add TARGET_lower and TARGET_upper, which contain the true value with this probability, such as 0.9 (regression).
    Needs a run with the Calibration callback"""
    calibrate: CalibrationMethod | None = None
    """calibrate probabilities on validation data (classification). Needs a run with the Calibration callback"""
    spread: bool = False
    """add TARGET_std, the standard deviation over the models that predict"""
    others: Sequence[str | Path] = ()
    """runs of the same recipe with other seeds; their models predict too"""
    mc_dropout: Annotated[int, Ge(2)] | None = None
    """add TARGET_std over this many passes with dropout (and over the models, if several predict); depends on the
    numbers of rows and samples at a time"""
    batch_size: Count | None = None
    """samples in a batch (default: that of the run's evaluations)"""
    rows: Count = 2_000
    """rows in memory at a time"""
    workers: Count | None = None
    """processes that read molecules (default: one per core, one for few molecules)"""
    trust: bool = False
    """allow the run's config.yaml to name classes outside lightning_fl, which executes their code"""
    accelerator: str = "auto"
    """cpu, cuda or auto"""

    def __post_init__(self) -> None:
        check_fields(self)

    def check_models(self, count: int) -> None:
        """Refuse options that do not apply to ``count`` models."""
        if self.spread and self.mc_dropout is None and count < 2:
            others = "--mc_dropout N" if self.model == "all" else "--mc_dropout N, or --model all"
            raise ConfigurationError(f"--spread needs several models, not {count}: add --with RUN, {others}.")
        if self.interval is not None and count > 1:
            raise ConfigurationError(f"--interval needs a single model, not {count}: choose one with --model.")
