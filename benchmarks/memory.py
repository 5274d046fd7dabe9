"""Peak memory as the number of clients grows, the total amount of data staying the same.

    uv run --group bench python benchmarks/memory.py [--clients 10 100 1000] [--repeats 3]

Every arm is a process of its own: FedAvg on LeNet, 20,000 random images in all, two rounds; for each number of
clients, its peak resident set and the ratio to the first.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile


def one(num_clients: int) -> None:
    """Train with this many clients and print the process's peak resident set in MiB."""
    from overhead import ours
    from workloads import Clients, ImageModule, images

    ours(ImageModule(), Clients(images(20_000), num_clients, 16, True), rounds=2, log_per_client=False)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.one)
        return
    peaks: dict[int, list[float]] = {count: [] for count in arguments.clients}
    for _ in range(arguments.repeats):
        for count, values in peaks.items():
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, __file__, "--one", str(count)]
                output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout
            values.append(float(output.split()[-1]))
    first = statistics.median(peaks[arguments.clients[0]])
    print("| clients | peak MiB | ratio |\n|---|---|---|")
    for count, values in peaks.items():
        print(f"| {count} | {statistics.median(values):.0f} | {statistics.median(values) / first:.3f} |")


if __name__ == "__main__":
    main()
