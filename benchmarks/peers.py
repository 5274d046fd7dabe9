"""lightning-fl against bare loops and other frameworks on the same federations, each arm in processes of its own.

    uv run --group bench python benchmarks/peers.py [cnn|gnn|many|sampled|large|all] [--repeats 3] [--arms NAME]
    uv run --group bench python benchmarks/peers.py cnn --against OTHER_CHECKOUT

All arms of a task run at once, but only one at a time goes on, for a round; the others wait meanwhile. Ratios are taken
between neighbouring rounds, and their median is printed as Markdown tables, with the ratios of the best decile and of
processor time. A round is slow where fixed work before or after it took a quarter longer than in the best decile: such
rounds are counted, and left out of a ratio of their own. Start-up is from the start of the process to the end of the
first round; memory is that of all processes of an arm in two rounds alone, resident and with shared pages counted once.
No arm draws random numbers while it trains (but those called "shuffled"), so all should end with the bare loop's
weights. One torch thread in every process; "-2p" is two processes. ``--against`` adds arms that run this package from
another checkout.

Peers are installed into virtual environments of their own when they are first needed, with the torch of this one.
Linux only.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from subprocess import run

import psutil
from peer_environments import DEFAULT_FOLDER, EnvironmentFailure, peer_python
from peer_tables import THERE, TITLES, Record, markdown, quantities
from turns import PausedCommand

SCRIPTS = Path(__file__).parent / "arms"
ROUNDS = {"cnn": 12, "gnn": 60, "many": 5, "sampled": 20, "large": 3}
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
MEMORY = ("rss_mib", "pss_mib", "processes")
QUIET = {
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True)
class Arm:
    """One way to run a federation: a script of ``arms/`` and its words."""

    name: str
    federation: str
    script: str
    words: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    environment: str | None = None
    """The peer in whose environment it runs; ``None`` for this one."""
    ranks: int = 1
    checkout: str = ""
    """Another one, from which the package is taken."""

    def command(self, python: str, rounds: int) -> list[str]:
        script = str(SCRIPTS / self.script)
        return [python, *self.launcher, script, self.federation, *self.words, "--rounds", str(rounds)]


def bare(name: str, federation: str, *words: str, processes: int = 1) -> Arm:
    launcher = (str(SCRIPTS / "launch.py"), str(processes)) if processes > 1 else ()
    return Arm(name, federation, "run_bare.py", words, launcher, ranks=processes)


def ours(name: str, federation: str, *words: str, processes: int = 1) -> Arm:
    """The one place that says how lightning-fl is started."""
    return Arm(name, federation, "run_ours.py", (*words, "--processes", str(processes)), ranks=processes)


def pfl(name: str, federation: str, processes: int = 1) -> Arm:
    return Arm(name, federation, "run_pfl.py", (), tuple(TORCHRUN) if processes > 1 else (), "pfl", processes)


def flower(name: str, federation: str, *words: str) -> Arm:
    return Arm(name, federation, "run_flower.py", words, environment="flower")


ARMS = {
    "cnn": [
        bare("bare", "cnn"),
        bare("bare-kept", "cnn", "--keep"),
        bare("bare-2p", "cnn", processes=2),
        bare("bare-kept-2p", "cnn", "--keep", processes=2),
        ours("lightning-fl", "cnn"),
        ours("lightning-fl-2p", "cnn", processes=2),
        pfl("pfl", "cnn"),
        pfl("pfl-2p", "cnn", processes=2),
        flower("flower", "cnn"),
        flower("flower-lightning", "cnn", "--lightning"),
    ],
    "gnn": [
        bare("bare-shuffled", "gnn", "--shuffle"),
        bare("bare-kept", "gnn", "--keep"),
        ours("lightning-fl", "gnn"),
        ours("lightning-fl-shuffled", "gnn", "--shuffle"),
        ours("lightning-fl-shuffled-2p", "gnn", "--shuffle", processes=2),
        ours("lightning-fl-2p", "gnn", processes=2),
        flower("flower", "gnn"),
    ],
    "many": [
        bare("bare-10c", "few"),
        bare("bare-1000c", "many"),
        ours("lightning-fl-10c", "few"),
        ours("lightning-fl-1000c", "many"),
    ],
    "sampled": [
        arm
        for count in ("1e+03", "1e+04", "1e+05", "1e+06")
        for arm in (
            *(ours(f"lightning-fl-{count}", count), ours(f"lightning-fl-2p-{count}", count, processes=2)),
            pfl(f"pfl-{count}", count),
            *([flower(f"flower-{count}", count)] if count == "1e+03" else []),  # it starts a node for each client
        )
    ],
    "large": [
        bare("bare", "large"),
        bare("bare-2p", "large", processes=2),
        ours("lightning-fl", "large"),
        ours("lightning-fl-2p", "large", processes=2),
        pfl("pfl", "large"),
        pfl("pfl-2p", "large", processes=2),
        flower("flower", "large"),
    ],
}


class Benchmark:
    """Runs arms in a scratch folder and keeps their records."""

    def __init__(self, environments: Path, scratch: Path, timeout: float, output: Path | None) -> None:
        self.environments, self.scratch, self.timeout, self.output = environments, scratch, timeout, output
        self.records: list[Record] = []
        self.memory: dict[Arm, Record] = {}
        self.name = time.strftime("%Y-%m-%dT%H:%M:%S")
        self.machine = machine()

    def prepare(self, tasks: list[str]) -> None:
        """Write what arms read."""
        if "gnn" in tasks:
            command = [sys.executable, str(SCRIPTS / "make_molecules.py"), str(self.scratch / "molecules.pt"), "1128"]
            run(command, check=True)

    def warm_up(self, arm: Arm) -> None:
        """Run an arm for two rounds alone: its memory is measured, imports are compiled, its files are in memory."""
        with contextlib.suppress(EnvironmentFailure):  # which is told when the arm is measured
            command = self.start(arm, 2)
            while command.turn(self.timeout, look=True):
                pass
            self.memory[arm] = {name: value for name, value in self.end(command).items() if name in MEMORY}

    def measure(self, task: str, arms: list[Arm], rounds: int, repeat: int) -> None:
        """Run the arms of a task round by round, by turns."""
        records: dict[Arm, Record] = {}
        commands: dict[Arm, PausedCommand] = {}
        for arm in arms:
            records[arm] = {"run": self.name, "task": task, "arm": arm.name, "federation": arm.federation}
            records[arm] |= {"rounds": rounds, "repeat": repeat, "machine": self.machine}
            try:
                commands[arm] = self.start(arm, rounds)
                commands[arm].turn(self.timeout)  # before the next one starts
            except EnvironmentFailure as failure:
                records[arm] |= {"status": "failed", "tail": str(failure)}
        waiting = list(commands)
        while waiting:
            waiting = [arm for arm in waiting if commands[arm].turn(self.timeout)]
            waiting = [*waiting[1:], *waiting[:1]]  # nobody always comes after the same
        for arm, record in records.items():
            if arm in commands:
                record |= self.end(commands[arm]) | self.memory[arm]
            self.records.append(record)
            if self.output:
                with self.output.open("a") as file:
                    file.write(json.dumps(record) + "\n")
            report(record)

    def start(self, arm: Arm, rounds: int) -> PausedCommand:
        """Start an arm in a folder of its own.

        Raises:
            EnvironmentFailure: its environment cannot be made.
        """
        own = arm.environment is None
        python = str(peer_python(arm.environment, self.environments)) if arm.environment else sys.executable
        # This project's interpreter keeps its path, so that a working tree may stand in for what is installed.
        paths = [str(SCRIPTS), arm.checkout or (os.environ.get("PYTHONPATH", "") if own else "")]
        folder = Path(tempfile.mkdtemp(dir=self.scratch))  # short: Ray puts sockets below it, of at most 107 characters
        home = {"TMPDIR": str(folder), "RAY_TMPDIR": str(folder), "FLWR_HOME": str(folder / "flwr")}
        files = {"BENCH_RECORD": str(folder / "record.json"), "BENCH_MOLECULES": str(self.scratch / "molecules.pt")}
        environment = {**os.environ, **QUIET, **home, **files, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        # Every arm finds its imports compiled, wherever these environments and their caches come from.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(self.environments / "pycache")
        return PausedCommand(arm.command(python, rounds), arm.ranks, environment=environment, folder=folder)

    def end(self, command: PausedCommand) -> Record:
        """End an arm, and read what it wrote down."""
        command.close()
        outcome, folder = command.outcome, command.folder
        record: Record = {**asdict(outcome), "status": "ok"}
        written = folder / "record.json"
        if written.exists():
            record |= json.loads(written.read_text())
        if outcome.exit_code is None:
            record["status"] = f"stopped: a round took {self.timeout:.0f} s"
        elif outcome.exit_code or not record.get("ends"):
            record["status"] = f"failed with exit code {outcome.exit_code}"
        if record["status"] != "ok":
            record["tail"] = "\n".join(command.log.read_text(errors="replace").splitlines()[-15:])
        shutil.rmtree(folder, ignore_errors=True)
        return record


def machine() -> str:
    """This machine in a line."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in cpuinfo if line.startswith("model name")), platform.machine())
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{os.cpu_count()} x {model}, {memory:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}"
    )


def report(record: Record) -> None:
    """A line on a run, to standard error."""
    line = f"{record['task']} {record['arm']} repeat {record['repeat'] + 1}: {record['status']}"
    if record["status"] == "ok":
        values = quantities(record)
        line += f", {values['round']:.3f} s per round, start-up {values['start']:.1f} s, PSS {values['pss']:.0f} MiB"
        line += f", checksum {record['checksum']:.4f}"
    else:
        line += "\n" + record["tail"]
    print(line, file=sys.stderr, flush=True)


def chosen(task: str, names: list[str] | None, other: Path | None) -> list[Arm]:
    """The arms of a task that were asked for."""
    arms = [arm for arm in ARMS[task] if not names or arm.name in names]
    if other is not None:
        mine = [arm for arm in arms if arm.script == "run_ours.py"]
        arms += [replace(arm, name=arm.name + THERE, checkout=str(other.resolve())) for arm in mine]
    return arms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="all", choices=[*TITLES, "all"])
    parser.add_argument("--repeats", type=int, default=3, help="of all processes, which are new in each")
    parser.add_argument("--rounds", type=int, help=", ".join(f"{task}: {count}" for task, count in ROUNDS.items()))
    names = list(dict.fromkeys(arm.name for arms in ARMS.values() for arm in arms))
    parser.add_argument("--arms", nargs="+", metavar="NAME", choices=names, help=f"only these of {', '.join(names)}")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout of this project")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which an arm's round is stopped")
    parser.add_argument("--environments", type=Path, default=DEFAULT_FOLDER, help="where peers are installed")
    parser.add_argument("--json", type=Path, help="a file of JSON lines, to which every run's record is added")
    parser.add_argument("--summarize", type=Path, nargs="+", metavar="FILE", help="only print the tables of such files")
    arguments = parser.parse_args()
    if arguments.summarize:
        lines = [line for path in arguments.summarize for line in path.read_text().splitlines()]
        print(markdown([json.loads(line) for line in lines]))
        return
    if not sys.platform.startswith("linux"):
        parser.error("memory is read from /proc, which only Linux has")
    for number in (signal.SIGINT, signal.SIGTERM):  # either ends the arm's processes too
        signal.signal(number, lambda *_: sys.exit(1))
    tasks = list(TITLES) if arguments.task == "all" else [arguments.task]
    with tempfile.TemporaryDirectory(prefix="lfb", ignore_cleanup_errors=True) as scratch:
        benchmark = Benchmark(arguments.environments.absolute(), Path(scratch), arguments.timeout, arguments.json)
        benchmark.prepare(tasks)
        arms = {task: chosen(task, arguments.arms, arguments.against) for task in tasks}
        for arm in (arm for of_task in arms.values() for arm in of_task):
            benchmark.warm_up(arm)
        for repeat in range(arguments.repeats):
            for task in tasks:
                benchmark.measure(task, arms[task], arguments.rounds or ROUNDS[task], repeat)
    print(markdown(benchmark.records))


if __name__ == "__main__":
    main()
