"""Turns that failed: what is said of them, whether the run goes on without their clients, and what they held."""

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
    """The report of a participant's turn that failed; the module has its own parameters again afterwards.

    Args:
        loop: of the run.
        cohort: of the round.
        place: of the participant.
        error: as raised.

    Raises:
        TrainingError: the device can compute nothing more, so that no other turn can be taken, whatever the policy is.
    """
    report = ClientReport(error=_in_words(loop, error))
    if breaks_device(error):
        _end(loop, cohort, place, f"{report.error} This process can compute nothing more on its device.", error)
    loop.flat.restore()  # for the clients after it
    if loop.settings.on_client_error == "skip":
        free_memory(error, loop.processes.device)
    return report


def free_memory(error: BaseException, device: torch.device) -> None:
    """Free what the frames of an error hold, activations above all: the next turn needs the memory.

    Args:
        error: that is not raised again; where it was raised can still be said.
        device: gives back what it keeps for later, if memory was what it lacked.
    """
    for each in chain(error):
        traceback.clear_frames(each.__traceback__)
    if out_of_memory(error):
        gc.collect()  # what user code ties into a circle
        if device.type == "cuda":
            torch.cuda.empty_cache()


def raise_or_warn(loop: LocalLoop, cohort: Cohort, reports: dict[int, ClientReport], own: Exception | None) -> None:
    """End the run for failed turns, or warn that it goes on without their clients, as the policy is.

    Args:
        loop: of the run.
        cohort: of the round.
        reports: by place in the cohort.
        own: the error, where it is this rank's.

    Raises:
        TrainingError: one failed and the policy is to fail, or all did.
    """
    failed = {place: report.error for place, report in reports.items() if report.error is not None}
    if not failed:
        return
    place, reason = next(iter(failed.items()))
    if loop.settings.on_client_error == "fail":
        mend = " Set trainer.on_client_error=skip to leave failing clients out of a round."
        _end(loop, cohort, place, reason, own, mend)
    if len(failed) == len(reports):
        raise TrainingError(f"every client of the round failed; the first: {_said(loop, cohort, place, reason)}")
    done = loop.federation.current_round + 1
    for place, reason in failed.items():
        who, what = _turn(loop, cohort, place)
        rank_zero_warn(f"{who} is left out of {what}round {done}: {reason}")


def _end(loop: LocalLoop, cohort: Cohort, place: int, reason: str, error: Exception | None, mend: str = "") -> NoReturn:
    raise TrainingError(f"{_said(loop, cohort, place, reason)} {_NOTHING_LOST}{mend}") from error


def _said(loop: LocalLoop, cohort: Cohort, place: int, reason: str) -> str:
    who, what = _turn(loop, cohort, place)
    done = loop.federation.current_round + 1
    return f"{who} failed in {what and f'the training of {what}'}round {done}: {reason}"


def _turn(loop: LocalLoop, cohort: Cohort, place: int) -> tuple[str, str]:
    """The client, and which of its turns where it has several."""
    turns = Counter(participant.client for participant in cohort.participants)
    one = cohort.participants[place]
    draw = f"draw {one.draw} of " if any(participant.draw for participant in cohort.participants) else ""
    return loop.name_of(one.client), f"{draw}model {one.model} in " if turns[one.client] > 1 else ""


def _in_words(loop: LocalLoop, error: Exception) -> str:
    own = isinstance(error, FederatedError)
    text = (None if own else refusal(error)) or f"{type(error).__name__}: {error}"
    place = "" if own else place_of(error, type(loop.module).__module__.split(".")[0])
    if place:
        text = f"{text.removesuffix('.')}{place}."
    text += "" if text.endswith((".", "!", "?")) else "."
    if loop.settings.channels_last and "view size is not compatible" in text:
        text += " Images are laid out as trainer.channels_last says; set it to false where the module needs `view`."
    precision = loop.precision
    if precision != "32-true" and any(word in text for word in ("dtype", "BFloat16", "Double")):
        text += f" The run computes with trainer.precision={precision}: try 32, or bf16-mixed to save memory."
    return text
