"""Training of a round's cohort, and what failed turns mean for it."""

import gc
import math
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.core.metrics import LoggedValue
from lightning_fl.core.system_errors import breaks_device, chain, out_of_memory
from lightning_fl.engine.client import ClientReport, ClientTurn, ClientUpdate, packed
from lightning_fl.engine.federation import OF_MODEL, PERSONAL_LAYERS, STRATEGY
from lightning_fl.engine.hooks import Hook
from lightning_fl.engine.learner import Learner
from lightning_fl.engine.round.averaging import ClientModels, SharedModels, count_vectors
from lightning_fl.engine.stacked.loop import StackedLoop, StackedTurns
from lightning_fl.engine.turn.loop import LocalLoop

#: Takes a participant's update.
Submit = Callable[[Participant, ClientUpdate], None]


def train_round(loop: LocalLoop, cohort: Cohort, stacked: StackedLoop | None = None) -> None:
    """Train a cohort and update the models of the loop's federation; an empty cohort changes nothing."""
    now = loop.round
    now.starts, now.shares = [], {}
    if not cohort.participants:
        now.reports, now.survivors = {}, set()
        return
    if loop.own_steps or loop.federation.optimizer_states:
        loop.federation.forget_changed(loop.learner.kept_for_model)
    if loop.own_steps:
        now.trained = {one: loop.identity_of(loop.model_of(one)) for one in cohort.participants}
    chooser = next(iter(loop.hooks.of("select_collaboration")), None)
    if chooser is not None:
        cohort.refuse_models(chooser.owner)
    if chooser is not None and "model_per_client" in getattr(chooser.listener, "traits", ()):
        models: SharedModels | ClientModels = ClientModels(loop, cohort, chooser)
    else:
        models = SharedModels(loop, cohort, chooser)
    models.finish(_train_cohort(loop, cohort, stacked, models.receive))


def _train_cohort(
    loop: LocalLoop, cohort: Cohort, stacked: StackedLoop | None, submit: Submit
) -> dict[Participant, ClientReport]:
    """Take every hosted participant's turn and submit its update; sets the round's reports and survivors."""
    federation, now = loop.federation, loop.round
    count_vectors(loop)
    federation.communication.begin_turns(cohort.participants, federation.models, federation.collaboration)
    after = loop.hooks.of("on_client_end")
    stacked_turns = None if stacked is None else StackedTurns(loop, stacked, cohort)
    failed = _measure(loop, cohort) if "measure_client" in loop.own_steps else {}  # by place in the cohort

    def take(place: int, participant: Participant) -> ClientReport:
        if stacked_turns is None:
            turn = loop.begin_turn(participant)
            report = loop.take_turn(turn)
        else:
            turn, report = stacked_turns.take(place)
        now.participant = participant
        return _submit(loop, participant, turn, report, submit)

    restores = None if stacked_turns is None else stacked_turns.restores
    reports, failure = _of_hosted(loop, cohort, take, after, failed, restores)
    reports = loop.processes.exchange(failed | reports)
    raise_or_warn(loop, cohort, reports, failure)
    federation.freeze(loop.flat, [report.trainable for report in reports.values() if report.error is None])
    of_client: dict[int, list[ClientReport]] = {}
    for place, report in reports.items():
        of_client.setdefault(cohort.participants[place].client, []).append(report)
    now.reports = {client: combine_reports(turns) for client, turns in sorted(of_client.items())}
    now.survivors = {client for client, report in now.reports.items() if report.error is None}
    return {cohort.participants[place]: report for place, report in reports.items() if report.error is None}


def _of_hosted(
    loop: LocalLoop,
    cohort: Cohort,
    take: Callable[[int, Participant], ClientReport],
    after: Sequence[Hook] = (),
    without: Collection[int] = (),
    restores: Mapping[int, Callable[[], None]] | None = None,
) -> tuple[dict[int, ClientReport], Exception | None]:
    """Reports of hosted participants by place in the cohort, up to an error that ends the run, and that error."""
    reports: dict[int, ClientReport] = {}
    for place, participant in enumerate(cohort.participants):
        client = participant.client
        if not loop.processes.hosts(client) or place in without:
            continue
        restore = loop.federation.snapshot_client(client) if loop.settings.on_client_error == "skip" else None
        try:
            reports[place] = take(place, participant)
        except Exception as error:
            reports[place] = failure_report(loop, cohort, place, error)
            if restore is None:
                if loop.processes.several:  # do not let other ranks finish their turns
                    raise_or_warn(loop, cohort, {place: reports[place]}, error)
                return reports, error
            (restores or {}).get(place, restore)()
            continue
        for hook in after:  # the client is in the sums now, so that errors here must not leave it out
            hook(client)
    return reports, None


def _measure(loop: LocalLoop, cohort: Cohort) -> dict[int, ClientReport]:
    """Let the cohort measure before it trains; returns reports of failed hosted participants, by place."""
    loop.measured = {}
    found, failure = _of_hosted(loop, cohort, lambda _, one: ClientReport(numbers=loop.measure(one)))
    everyone = loop.processes.exchange(found)
    if loop.settings.on_client_error == "fail":
        raise_or_warn(loop, cohort, everyone, failure)
    for place, report in everyone.items():
        if report.error is None:
            participant = cohort.participants[place]
            loop.measured.setdefault(loop.model_of(participant), {})[participant.client] = report.numbers
    if loop.hooks.of("select_collaboration"):  # the collaboration is not known yet
        whole = {client: numbers for of_model in loop.measured.values() for client, numbers in of_model.items()}
        loop.measured = dict.fromkeys(loop.measured, whole)
    return {place: report for place, report in found.items() if report.error is not None}


def _submit(
    loop: LocalLoop, participant: Participant, turn: ClientTurn, report: ClientReport, submit: Submit
) -> ClientReport:
    """Submit a client's shared weights and store its personal layers and strategy state; returns its report."""
    learner, personal = loop.learner, loop.federation.personal
    turn.report = report
    weights = loop.flat.collect()
    if "end_client" in loop.own_steps:
        learner.end_client(turn, weights)
    own = None if personal is None else personal.extract(weights)
    # Not those of turn.start, which may be the client's own model (FedSoft).
    shared = weights if personal is None else personal.copy_(weights, loop.start_of(participant))
    update = learner.client_update(turn, shared) if "client_update" in loop.own_steps else ClientUpdate(shared)
    if "client_update" in loop.own_steps or learner.extra_vectors:
        _check_update(learner, update)
    if turn.moments:
        update = replace(update, vectors=update.vectors | turn.moments)
    kept = packed(turn.kept)  # raises if a checkpoint could not hold it
    submit(participant, update)
    if personal is not None and own is not None:
        loop.federation.client_store(PERSONAL_LAYERS)[participant.client] = own
        personal.insert_(weights, own)
    if kept:
        mark = {OF_MODEL: loop.identity_of(turn.model)} if learner.kept_for_model else {}
        loop.federation.client_store(STRATEGY)[participant.client] = kept | mark
    if "client_update" not in loop.own_steps:
        return report
    return replace(report, scale=update.scale, numbers=update.numbers, weight=update.weight)


def _check_update(learner: Learner, update: ClientUpdate) -> None:
    name = f"{type(learner).__name__}.client_update"
    if not isinstance(update, ClientUpdate):
        raise ConfigurationError(f"{name} returned {type(update).__name__}: return ClientUpdate(weights).")
    for kind, factor in (("scale", update.scale), ("weight", update.weight)):
        if factor is not None and not (math.isfinite(factor) and factor >= 0):
            raise TrainingError(f"{name} returned {kind}={factor}: must be finite and at least 0.")
    if (given := sorted(update.vectors)) != (named := sorted(learner.extra_vectors)):
        raise ConfigurationError(f"{name} returned the vectors {given}: return the extra_vectors {named}.")


def combine_reports(turns: Sequence[ClientReport]) -> ClientReport:
    """Combine a client's reports of a round in which it trained one or several models.

    Failed turns are left out; the client failed if all its turns did. Samples count once, steps are summed, and logged
    values are averaged by the samples of each turn.
    """
    done = [turn for turn in turns if turn.error is None]
    if len(turns) == 1 or not done:
        return turns[0]
    names = dict.fromkeys(name for turn in done for name in turn.metrics)
    metrics = {name: _mean([turn.metrics[name] for turn in done if name in turn.metrics]) for name in names}
    return ClientReport(max(turn.num_samples for turn in done), sum(turn.num_steps for turn in done), metrics)


def _mean(values: Sequence[LoggedValue]) -> LoggedValue:
    if len(values) == 1:
        return values[0]
    total = math.fsum(value.weight for value in values)
    weights = [value.weight / total if total else 1 / len(values) for value in values]
    mean = sum(value.value * weight for value, weight in zip(values, weights, strict=True))
    return replace(values[0], value=mean, weight=total, steps=tuple(step for value in values for step in value.steps))


_NOTHING_LOST = "Nothing is lost: the last checkpoint is untouched."


def failure_report(loop: LocalLoop, cohort: Cohort, place: int, error: Exception) -> ClientReport:
    """Report a participant's failed turn, and restore the module's own parameters; raise if the device is unusable."""
    report = ClientReport(error=loop.explain(error))
    if breaks_device(error):
        reason = f"{report.error} This process can no longer use its device."
        raise TrainingError(f"{_describe(loop, cohort, place, reason)} {_NOTHING_LOST}") from error
    loop.flat.restore()  # for the next clients
    loop.metric_states.reset()
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
    """Raise because of failed turns (if all failed, or ``on_client_error="fail"``), or warn of them."""
    failed = {place: report.error for place, report in reports.items() if report.error is not None}
    if not failed:
        return
    place, reason = next(iter(failed.items()))
    if loop.settings.on_client_error == "fail":
        text = f"{_describe(loop, cohort, place, reason)} {_NOTHING_LOST}"
        if not isinstance(own, ConfigurationError):  # whose message says what to change
            text += " Set trainer.on_client_error=skip to leave failing clients out of a round."
        raise TrainingError(text) from own
    if len(failed) == len(reports):
        raise TrainingError(f"every client of the round failed; the first: {_describe(loop, cohort, place, reason)}")
    done = loop.federation.current_round + 1
    for place, reason in failed.items():
        who, what = _turn(loop, cohort, place)
        rank_zero_warn(f"{who} is left out of {what}round {done}: {reason}")


def _describe(loop: LocalLoop, cohort: Cohort, place: int, reason: str) -> str:
    who, what = _turn(loop, cohort, place)
    return f"{who} failed in {what and f'the training of {what}'}round {loop.federation.current_round + 1}: {reason}"


def _turn(loop: LocalLoop, cohort: Cohort, place: int) -> tuple[str, str]:
    """The client, and its turn if it has several."""
    turns = Counter(participant.client for participant in cohort.participants)
    one = cohort.participants[place]
    draw = f"draw {one.draw} of " if any(participant.draw for participant in cohort.participants) else ""
    return loop.name_of(one.client), f"{draw}model {one.model} in " if turns[one.client] > 1 else ""
