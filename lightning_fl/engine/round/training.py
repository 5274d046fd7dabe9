"""Training of a round's cohort."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.core.metrics import LoggedValue
from lightning_fl.engine.client import ClientReport, ClientTurn, ClientUpdate, packed
from lightning_fl.engine.federation import OF_MODEL, PERSONAL_LAYERS, STRATEGY
from lightning_fl.engine.hooks import Hook
from lightning_fl.engine.learner import Learner
from lightning_fl.engine.round.averaging import SharedModels
from lightning_fl.engine.round.failures import failure_report, raise_or_warn
from lightning_fl.engine.round.personal import ClientModels
from lightning_fl.engine.stacked.loop import StackedLoop
from lightning_fl.engine.stacked.turns import StackedTurns
from lightning_fl.engine.turn.loop import LocalLoop

__all__ = ["combine_reports", "train_round"]


def train_round(loop: LocalLoop, cohort: Cohort, stacked: StackedLoop | None = None) -> None:
    """Train a cohort and update the models of the loop's federation; an empty cohort changes nothing.

    Raises:
        TrainingError: on every rank, if a client's turn fails and ``on_client_error`` is "fail", or all fail.
    """
    now = loop.round
    now.starts, now.shares = [], {}
    if not cohort.participants:
        now.reports, now.survivors = {}, set()
        return
    if loop.own_steps:
        loop.federation.forget_changed(loop.learner.kept_for_model)
        now.trained = {one: loop.identity_of(loop.model_of(one)) for one in cohort.participants}
    chooser = next(iter(loop.hooks.of("select_collaboration")), None)
    if chooser is not None and any(participant.model is not None for participant in cohort.participants):
        raise ConfigurationError(
            f"{chooser.owner} decides who trains which model, but the callback that selects clients assigns models to"
            " them. Keep one of the two in trainer.callbacks."
        )
    if chooser is not None and "model_per_client" in getattr(chooser.listener, "traits", ()):
        models: SharedModels | ClientModels = ClientModels(loop, cohort, chooser)
    else:
        models = SharedModels(loop, cohort, chooser)
    models.finish(_train_cohort(loop, cohort, stacked, models.receive))


def _train_cohort(
    loop: LocalLoop,
    cohort: Cohort,
    stacked: StackedLoop | None,
    hand_over: Callable[[Participant, ClientUpdate], None],
) -> dict[Participant, ClientReport]:
    """Take every hosted participant's turn and hand over its update; sets the round's reports and survivors.

    A client that trains several models has a turn for each; each may fail on its own.

    Returns:
        Participants on all ranks without failed turns, with their reports.
    """
    federation, now = loop.federation, loop.round
    federation.communication.begin_turns(cohort.participants, federation.models, federation.collaboration)
    after = loop.hooks.of("on_client_end")
    take_turn = partial(_take_turn, loop) if stacked is None else StackedTurns(loop, stacked, cohort).take
    failed = _measure(loop, cohort) if "measure_client" in loop.own_steps else {}  # by place in the cohort

    def take(place: int, participant: Participant) -> ClientReport:
        report, turn = take_turn(place, participant)
        now.participant = participant
        return _hand_over(loop, participant, turn, report, hand_over)

    reports, failure = _of_hosted(loop, cohort, take, after, failed)
    reports = loop.processes.exchange(failed | reports)
    raise_or_warn(loop, cohort, reports, failure)
    changed = [report.trainable for report in reports.values() if report.error is None]
    if any(changed):
        federation.freeze(loop.flat, changed)
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
) -> tuple[dict[int, ClientReport], Exception | None]:
    """Reports of hosted participants by place in the cohort, up to an error that ends the run, and that error."""
    reports: dict[int, ClientReport] = {}
    for place, participant in enumerate(cohort.participants):
        client = participant.client
        if not loop.processes.hosts(client) or place in without:
            continue
        give_back = loop.federation.remember(client) if loop.settings.on_client_error == "skip" else None
        try:
            reports[place] = take(place, participant)
        except Exception as error:
            reports[place] = failure_report(loop, cohort, place, error)
            if give_back is None:
                if loop.processes.several:  # do not let other ranks finish their turns
                    raise_or_warn(loop, cohort, {place: reports[place]}, error)
                return reports, error
            give_back()
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


def _take_turn(loop: LocalLoop, place: int, participant: Participant) -> tuple[ClientReport, ClientTurn]:
    """Take a participant's turn, which leaves its new weights in the module."""
    turn = loop.begin_turn(participant)
    return loop.take_turn(turn), turn


def _hand_over(
    loop: LocalLoop,
    participant: Participant,
    turn: ClientTurn,
    report: ClientReport,
    hand_over: Callable[[Participant, ClientUpdate], None],
) -> ClientReport:
    """Hand over a client's shared weights and store its personal layers and strategy state; returns its report."""
    learner, personal = loop.learner, loop.federation.personal
    turn.report = report
    weights = loop.flat.collect()
    if "end_client" in loop.own_steps:
        learner.end_client(turn, weights)
    own = None if personal is None else personal.extract(weights)
    shared = weights if personal is None else personal.copy_(weights, turn.start)
    update = ClientUpdate(shared)
    if "client_update" in loop.own_steps:
        update = learner.client_update(turn, shared)
    if "client_update" in loop.own_steps or learner.extra_vectors:
        _check_update(learner, update)
    kept = packed(turn.kept)  # raises if a checkpoint could not hold it
    hand_over(participant, update)
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
    if sorted(update.vectors) != sorted(learner.extra_vectors):
        raise ConfigurationError(
            f"{name} returned the vectors {sorted(update.vectors)}, and extra_vectors names"
            f" {sorted(learner.extra_vectors)}: return exactly these."
        )


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
