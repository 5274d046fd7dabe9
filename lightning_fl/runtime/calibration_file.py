"""``calibration.json`` of a run's folder: errors of its models on validation data.

For each model and target, the counts of conformal scores of a regression (:mod:`lightning_fl.functional.conformal`) or
the points of the calibrations of a probability (:mod:`lightning_fl.functional.probability_calibration`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lightning_fl.core.errors import CheckpointError
from lightning_fl.files.atomic import write_whole

CALIBRATION_FILE = "calibration.json"
_VERSION = 1
_POINTS = ("from", "to")


@dataclass(frozen=True)
class TargetCalibration:
    """Errors of a model's predictions of one target."""

    kind: Literal["regression", "classification"]
    num_samples: int  #: with a target, behind the numbers
    num_clients: int  #: that have these
    scores: Mapping[int, int] | None = None  #: of a regression: step of the grid -> absolute errors on it
    platt: tuple[float, float] | None = None  #: of a classification: (a, b); ``None`` without a label
    isotonic: tuple[list[float], list[float]] | None = None  #: the same: probabilities and what they become

    def plain(self) -> dict[str, Any]:
        """Convert for JSON."""
        own: dict[str, Any] = {"kind": self.kind, "num_samples": self.num_samples, "num_clients": self.num_clients}
        if self.kind == "regression":
            return own | {"scores": self.scores or {}}
        points = self.isotonic and dict(zip(_POINTS, self.isotonic, strict=True))
        return own | {"platt": self.platt, "isotonic": points}

    @classmethod
    def of_plain(cls, found: Any) -> "TargetCalibration":
        """Convert from :meth:`plain`; errors where it is damaged are :func:`read_calibration`'s."""
        samples, clients = int(found["num_samples"]), int(found["num_clients"])
        if found["kind"] == "regression":
            scores = {int(step): int(number) for step, number in found["scores"].items()}
            if sum(scores.values()) != samples:
                raise ValueError("the number of scores differs from the number of samples")
            return cls("regression", samples, clients, scores)
        if found["kind"] != "classification":
            raise ValueError(f"kind {found['kind']!r}")
        platt, points = found["platt"], found["isotonic"]
        return cls(
            "classification",
            samples,
            clients,
            platt=platt and (float(platt[0]), float(platt[1])),
            isotonic=points and tuple(list(map(float, points[name])) for name in _POINTS),
        )


def write_calibration(folder: Path, models: Mapping[str, Sequence[TargetCalibration]]) -> None:
    """Write a run's file, whole or not at all: model (its file in ``models/``, without ``.ckpt``) -> its T targets."""
    plain = [{"name": name, "targets": [target.plain() for target in targets]} for name, targets in models.items()]
    content = {"version": _VERSION, "split": "val", "models": plain}
    write_whole(folder / CALIBRATION_FILE, json.dumps(content, allow_nan=False, indent=1) + "\n")


def read_calibration(folder: Path) -> dict[str, list[TargetCalibration]] | None:
    """Read a run's file: model -> its targets; ``None`` where the run has none."""
    path = folder / CALIBRATION_FILE
    try:
        if not path.exists():
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']!r}, known is {_VERSION}")
        return {
            str(model["name"]): [TargetCalibration.of_plain(target) for target in model["targets"]]
            for model in content["models"]
        }
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{path} is damaged ({reason}): copy it again, or train again.") from error
