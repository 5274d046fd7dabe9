"""The records of ``peers.py`` as Markdown: medians, and ratios of arms between neighbouring rounds."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]

TITLES = {
    "cnn": "CNN: 20 clients x 250 images, LeNet, batch 16, one epoch a round",
    "gnn": "GNN: 3 clients x 376 molecules, GCN, 5 steps of 32 a round",
    "many": "Many clients: 1,000 clients x 20 images against 10 x 2,000, LeNet, batch 10, one epoch a round",
    "sampled": "100 of 10^3 to 10^6 clients a round: 10 samples, logistic regression, one step",
    "large": "Large model: 20 clients x 32 images of 64x64, ResNet-18, batch 16, one epoch a round",
}
LABELS = {"round": "s per round", "start": "start-up", "rss": "peak RSS", "pss": "peak PSS"}


@dataclass(frozen=True)
class Comparison:
    """A ratio of two arms, with the bound that is aimed at."""

    task: str
    numerator: str
    denominator: str
    quantity: str = "round"
    at_most: float | None = None
    at_least: float | None = None

    def verdict(self, ratio: float) -> str:
        if self.at_most is not None:
            return f"at most {self.at_most:g}: {'met' if ratio <= self.at_most else 'missed'}"
        if self.at_least is not None:
            return f"at least {self.at_least:g}: {'met' if ratio >= self.at_least else 'missed'}"
        return ""


OURS = "lightning-fl"
#: Ends the names of arms that run another checkout.
THERE = ", there"
#: Work around a round that took so many times as long as in the best decile makes it a slow one.
SLOW = 1.25
COMPARISONS = (
    Comparison("cnn", OURS, "bare", at_most=1.05),
    Comparison("cnn", OURS, "bare-kept"),
    Comparison("cnn", f"{OURS}-2p", "bare-2p", at_most=0.8),
    Comparison("cnn", f"{OURS}-2p", "bare-kept-2p"),
    Comparison("cnn", "pfl", OURS, at_least=1.2),
    Comparison("cnn", "pfl-2p", f"{OURS}-2p", at_least=1.2),
    Comparison("cnn", "flower", f"{OURS}-2p", at_least=2),
    Comparison("cnn", "flower-lightning", f"{OURS}-2p", at_least=3),
    Comparison("cnn", OURS, "bare", "start"),
    Comparison("cnn", f"{OURS}-2p", "bare-2p", "start"),
    Comparison("cnn", "flower", f"{OURS}-2p", "start", at_least=2.5),
    Comparison("cnn", OURS, "bare", "rss"),
    Comparison("cnn", f"{OURS}-2p", "bare-2p", "pss"),
    Comparison("cnn", "flower", f"{OURS}-2p", "pss", at_least=2.5),
    Comparison("gnn", OURS, "bare-kept"),
    Comparison("gnn", f"{OURS}-shuffled", "bare-shuffled", at_most=0.7),
    Comparison("gnn", f"{OURS}-shuffled-2p", "bare-shuffled"),
    Comparison("gnn", "flower", OURS, at_least=4),
    Comparison("gnn", "flower", f"{OURS}-2p"),
    Comparison("gnn", OURS, "bare-kept", "start"),
    Comparison("many", f"{OURS}-1000c", f"{OURS}-10c", at_most=1.1),
    Comparison("many", "bare-1000c", "bare-10c"),
    Comparison("many", f"{OURS}-10c", "bare-10c"),
    Comparison("many", f"{OURS}-1000c", "bare-1000c"),
    Comparison("many", f"{OURS}-1000c", f"{OURS}-10c", "rss", at_most=1.2),
    Comparison("many", "bare-1000c", "bare-10c", "rss"),
    *(Comparison("sampled", f"{OURS}-{count}", f"{OURS}-1e+03") for count in ("1e+04", "1e+05", "1e+06")),
    *(Comparison("sampled", f"{OURS}-2p-{count}", f"{OURS}-2p-1e+03") for count in ("1e+04", "1e+05", "1e+06")),
    Comparison("large", OURS, "bare"),
    Comparison("large", f"{OURS}-2p", "bare-2p"),
    Comparison("large", "pfl", OURS),
    Comparison("large", "pfl-2p", f"{OURS}-2p"),
    Comparison("large", "flower", f"{OURS}-2p"),
    Comparison("large", f"{OURS}-2p", "bare-2p", "pss"),
    Comparison("large", "flower", f"{OURS}-2p", "pss"),
)


def rounds(record: Record) -> list[float]:
    """Seconds of all rounds but the first, which warms up."""
    return [end - begin for begin, end in zip(record["begins"], record["ends"][1:], strict=False)]


def processor_times(record: Record) -> list[float]:
    """Seconds of processor time in these rounds; the last turn is the end of the run."""
    return list(record["processor"][1 : len(record["ends"])])


def quantities(record: Record) -> dict[str, float]:
    """What is compared of a run: seconds and MiB."""
    return {
        "round": statistics.median(rounds(record) or [float("nan")]),
        "start": record["ends"][0] - record["started"],
        "since_imports": record["ends"][0] - record["imported"],
        "wall": sum(record["turns"]),
        "rss": record["rss_mib"],
        "pss": record["pss_mib"],
        "processes": record["processes"],
    }


def paired_ratios(
    records: Iterable[Record], numerator: str, denominator: str, values: Callable[[Record], list[float]]
) -> list[float]:
    """One arm's values over another's, for every repeat in which both ran; ``nan`` leaves a pair out."""
    by_arm: dict[str, dict[Any, list[float]]] = {numerator: {}, denominator: {}}
    for record in records:
        if record["arm"] in by_arm and record["status"] == "ok":
            by_arm[record["arm"]][record["run"], record["repeat"]] = values(record)
    below = by_arm[denominator]
    pairs = (
        (a, b) for key, above in by_arm[numerator].items() for a, b in zip(above, below.get(key, []), strict=False)
    )
    return [a / b for a, b in pairs if b > 0 and a == a]


def best_decile(records: Iterable[Record], arm: str) -> float:
    """The tenth percentile of an arm's rounds over all repeats: what others on the machine disturb least."""
    times = [time for record in records if record["arm"] == arm and record["status"] == "ok" for time in rounds(record)]
    return percentile(times, 10) if times else float("nan")


def percentile(values: list[float], percent: int) -> float:
    """An observed value."""
    return sorted(values)[round((len(values) - 1) * percent / 100)]


def quiet_rounds(records: list[Record]) -> Callable[[Record], list[float]]:
    """Rounds of a record, ``nan`` where the machine was slow."""
    everywhere = [each for record in records if record["status"] == "ok" for each in record["slowness"]]
    most = SLOW * percentile(everywhere, 10) if everywhere else 0.0

    def quiet(record: Record) -> list[float]:
        times = zip(rounds(record), record["slowness"][1:], strict=False)
        return [time if slowness <= most else float("nan") for time, slowness in times]

    return quiet


def spread(values: list[float], digits: int = 2) -> str:
    """The median, and of more than one value the range between the first and the last decile."""
    middle = f"{statistics.median(values):.{digits}f}" if values else "-"
    if len(values) < 2:
        return middle
    return f"{middle} ({percentile(values, 10):.{digits}f} to {percentile(values, 90):.{digits}f})"


def difference(checksum: float, expected: float | None) -> str:
    """How far weights are from the bare loop's, relative to these."""
    if expected is None:
        return "-"
    relative = abs(checksum - expected) / expected
    return "same" if relative < 1e-5 else f"off by {relative:.0e}"


def markdown(records: list[Record]) -> str:
    """All tables. Records of several runs of the benchmark may be mixed; ratios stay within a run's repeat."""
    parts = []
    for task in TITLES:
        mine = [record for record in records if record["task"] == task]
        if mine:
            parts += [f"### {TITLES[task]}", _arms(mine), _comparisons(task, mine), _failures(mine)]
    machines = {record["machine"] for record in records}
    versions = sorted({f"{name} {value}" for record in records for name, value in record.get("versions", {}).items()})
    parts += [f"Machine: {'; '.join(sorted(machines))}. Versions: {', '.join(versions)}."]
    return "\n\n".join(part for part in parts if part)


def _arms(records: list[Record]) -> str:
    lines = [
        "| arm | runs | s per round | best decile | processor s | start-up, s | of it since imports | whole run, s |"
        " peak RSS, MiB | peak PSS, MiB | processes | weights against the bare loop's |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    good = [record for record in records if record["status"] == "ok"]
    for arm in dict.fromkeys(record["arm"] for record in good):
        runs = [record for record in good if record["arm"] == arm]
        values = [quantities(record) for record in runs]
        median = {name: statistics.median(value[name] for value in values) for name in values[0]}
        checks = [difference(record["checksum"], _expected(good, record)) for record in runs]
        lines.append(
            f"| {arm} | {len(runs)} | {spread([time for run in runs for time in rounds(run)], 3)} |"
            f" {best_decile(runs, arm):.3f} | {spread([time for run in runs for time in processor_times(run)], 3)} |"
            f" {median['start']:.1f} |"
            f" {median['since_imports']:.1f} | {median['wall']:.1f} | {median['rss']:.0f} | {median['pss']:.0f} |"
            f" {median['processes']:.0f} | {', '.join(dict.fromkeys(checks))} |"
        )
    return "\n".join(lines)


def _expected(records: list[Record], record: Record) -> float | None:
    """The bare loop's checksum after the same rounds of the same federation."""
    for other in records:
        alike = all(other[name] == record[name] for name in ("federation", "rounds"))
        if alike and other["arm"].startswith("bare") and "shuffled" not in other["arm"]:
            return float(other["checksum"])
    return None


def _comparisons(task: str, records: list[Record]) -> str:
    lines, quiet = [], quiet_rounds(records)
    arms = dict.fromkeys(record["arm"] for record in records)
    theirs = [Comparison(task, arm.removesuffix(THERE), arm) for arm in arms if arm.endswith(THERE)]
    for comparison in (*COMPARISONS, *theirs):
        if comparison.task != task:
            continue
        numerator, denominator, quantity = comparison.numerator, comparison.denominator, comparison.quantity

        def ratios(
            values: Callable[[Record], list[float]], of: tuple[str, str] = (numerator, denominator)
        ) -> list[float]:
            return paired_ratios(records, *of, values)

        if quantity == "round":
            found, others = (
                ratios(rounds),
                [f"{best_decile(records, numerator) / best_decile(records, denominator):.2f}"],
            )
            others += [spread(ratios(values)).partition(" ")[0] for values in (quiet, processor_times)]
        else:
            found, others = ratios(lambda record, name=quantity: [quantities(record)[name]]), ["", "", ""]  # type: ignore[misc]
        if found:
            values = [LABELS[quantity], spread(found), *others, comparison.verdict(statistics.median(found))]
            lines.append(f"| {numerator} / {denominator} | {' | '.join(values)} |")
    if not lines:
        return ""
    times = [time for record in records if record["status"] == "ok" for time in quiet(record)]
    slow = f"{sum(time != time for time in times)} of {len(times)} rounds were slow."
    title = "| ratio | of | median (deciles) | of best deciles | without slow rounds | of processor time | aim |"
    return "\n".join([title, "|---|---|---|---|---|---|---|", *lines, "", slow])


def _failures(records: list[Record]) -> str:
    bad = [record for record in records if record["status"] != "ok"]
    return "\n".join(
        f"{record['arm']}, repeat {record['repeat'] + 1}: {record['status']}\n\n```\n{record['tail']}\n```"
        for record in bad
    )
