"""Failed turns: their reports, whether the run continues without their clients, and freeing their memory."""

import gc
import traceback
from collections import Counter
from typing import NoReturn

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.core.cohort import Cohort
from lightning_fl.core.errors import FederatedError, TrainingError
from lightning_fl.core.system_errors import breaks_device, chain, out_of_memory, place_of, refusal
from lightning_fl.engine.client import ClientReport
from lightning_fl.engine.turn.loop import LocalLoop

__all__ = ["failure_report", "free_memory", "raise_or_warn"]

_NOTHING_LOST = "Nothing is lost: the last checkpoint is untouched."


def failure_report(loop: LocalLoop, cohort: Cohort, place: int, error: Exception) -> ClientReport:
    """Report a participant's failed turn, and restore the module's own parameters.

    Raises:
        TrainingError: the device is unusable, so that no other turn is possible.
    """
    report = ClientReport(error=_format_error(loop, error))
    if breaks_device(error):
        _end(loop, cohort, place, f"{report.error} This process can no longer use its device.", error)
    loop.flat.restore()  # for the next clients
    if loop.settings.on_client_error == "skip":
        free_memory(error, loop.processes.device)
    return report


def free_memory(error: BaseException, device: torch.device) -> None:
    """Free what the frames of an error hold, mainly activations, since the next turn needs the memory."""
    for each in chain(error):
        traceback.clear_frames(each.__traceback__)
    if out_of_memory(error):
        gc.collect()  # reference cycles of user code
        if device.type == "cuda":
            torch.cuda.empty_cache()


def raise_or_warn(loop: LocalLoop, cohort: Cohort, reports: dict[int, ClientReport], own: Exception | None) -> None:
    """End the run because of failed turns, or warn that it continues without their clients.

    Raises:
        TrainingError: a turn failed and ``on_client_error`` is "fail", or all turns failed.
    """
    failed = {place: report.error for place, report in reports.items() if report.error is not None}
    if not failed:
        return
    place, reason = next(iter(failed.items()))
    if loop.settings.on_client_error == "fail":
        remedy = " Set trainer.on_client_error=skip to leave failing clients out of a round."
        _end(loop, cohort, place, reason, own, remedy)
    if len(failed) == len(reports):
        raise TrainingError(f"every client of the round failed; the first: {_describe(loop, cohort, place, reason)}")
    done = loop.federation.current_round + 1
    for place, reason in failed.items():
        who, what = _turn(loop, cohort, place)
        rank_zero_warn(f"{who} is left out of {what}round {done}: {reason}")


def _end(
    loop: LocalLoop, cohort: Cohort, place: int, reason: str, error: Exception | None, remedy: str = ""
) -> NoReturn:
    raise TrainingError(f"{_describe(loop, cohort, place, reason)} {_NOTHING_LOST}{remedy}") from error


def _describe(loop: LocalLoop, cohort: Cohort, place: int, reason: str) -> str:
    who, what = _turn(loop, cohort, place)
    done = loop.federation.current_round + 1
    return f"{who} failed in {what and f'the training of {what}'}round {done}: {reason}"


def _turn(loop: LocalLoop, cohort: Cohort, place: int) -> tuple[str, str]:
    """The client, and its turn if it has several."""
    turns = Counter(participant.client for participant in cohort.participants)
    one = cohort.participants[place]
    draw = f"draw {one.draw} of " if any(participant.draw for participant in cohort.participants) else ""
    return loop.name_of(one.client), f"{draw}model {one.model} in " if turns[one.client] > 1 else ""


def _format_error(loop: LocalLoop, error: Exception) -> str:
    own = isinstance(error, FederatedError)
    text = (None if own else refusal(error)) or f"{type(error).__name__}: {error}"
    place = "" if own else place_of(error, type(loop.module).__module__.split(".")[0])
    if place:
        text = f"{text.removesuffix('.')}{place}."
    text += "" if text.endswith((".", "!", "?")) else "."
    if loop.settings.channels_last and "view size is not compatible" in text:
        text += " The images are in channels-last memory: set trainer.channels_last=false if the module needs `view`."
    precision = loop.precision
    if precision != "32-true" and any(word in text for word in ("dtype", "BFloat16", "Double")):
        text += f" The run uses trainer.precision={precision}: try 32, or bf16-mixed to save memory."
    return text
