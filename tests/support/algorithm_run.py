"""A script that federates the tiny module: started by tests as one or several real processes.

It writes the final weights of rank zero, as a hash of their bits, and every rank's opened files to ``--out``.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from corners import CornerModule, FailingTurns, MixedClients
from learners import Everything
from meeting import Meeting
from stateful_modules import AveragedModule, GatheringModule, SampledClients, StatefulModule
from tiny import FolderSilo, TinyClients, TinyModule, digest

from lightning_fl import FederatedTrainer, Silos
from lightning_fl.callbacks import (
    CFL,
    FLSC,
    HCCT,
    IFCA,
    ClientArrivals,
    CollaborationGraph,
    DiscriminatorSettings,
    DROClientSampling,
    FedCollab,
    FedSoft,
    FeSEM,
    FineTuning,
    KMeans,
    KNNPer,
    LocalMixup,
    LocalReference,
    PersonalLayers,
    PFedGraph,
    ShapleyRewards,
    SoftAveraging,
    TierBidding,
    Tokens,
    UniformSampling,
)
from lightning_fl.strategies import (
    APFL,
    SCAFFOLD,
    Ditto,
    FedAdam,
    FedAvgM,
    FedFA,
    FedNova,
    FedProx,
    FedRep,
    FedYogi,
    MaxFL,
    PerFedAvg,
    PFedMe,
    QFedAvg,
)

#: Ways of learning.
STRATEGIES: dict[str, Any] = {
    **{kind.name: kind for kind in (APFL, Ditto, FedAdam, FedAvgM, FedFA, FedNova, FedYogi, MaxFL, QFedAvg, SCAFFOLD)},
    "maxfl_out": lambda: MaxFL(opt_out=True),
    "fedprox": lambda: FedProx(mu=0.5),
    "perfedavg": lambda: PerFedAvg(adaptation_rate=0.01, hessian="differences"),
    "pfedme": lambda: PFedMe(strength=1.0),
    "fedrep": lambda: FedRep(head_epochs=1),
}


def callbacks(algorithm: str = "drflm") -> list[Any]:
    """An algorithm with state that crosses rounds."""
    if algorithm == "drflm":
        return [DROClientSampling(step_size=0.05), LocalMixup(alpha=0.4)]
    if algorithm in ("states", "averages"):
        return [UniformSampling(cohort_size=2)]
    if algorithm == "gathering":
        return []
    if algorithm == "finetune":
        return [FineTuning(steps=2, every_evaluation=True), PersonalLayers(layers=["linear.bias"])]
    if algorithm == "afl":
        return [DROClientSampling(method="afl", step_size=0.05), PersonalLayers(layers=["linear.bias"])]
    if algorithm == "knnper":
        return [KNNPer(k=3, interpolation="validation"), PersonalLayers(layers=["linear.bias"])]
    if algorithm in ("stacked", "learner"):
        return [UniformSampling(cohort_size=5), PersonalLayers(layers=["linear.bias"])]
    if algorithm == "fedcollab":
        small = DiscriminatorSettings(hidden=8, max_rounds=40, learning_rate=0.5)
        fedcollab = FedCollab(capacity=1.0, discriminator=small, warm_up_rounds=1, layer="before")
        return [fedcollab, ClientArrivals(rounds={"client_1": 3})]
    if algorithm == "graph":
        return [CollaborationGraph(budget=2, init_epochs=2), PersonalLayers(layers=["linear.bias"])]
    if algorithm.startswith("shapley"):
        method = algorithm.removeprefix("shapley_")
        return [ShapleyRewards(method=method, num_samples=4), PersonalLayers(layers=["linear.bias"])]
    if algorithm == "tiers":
        arguments: dict[str, Any] = {"num_best": 2, "threshold": 0.3, "num_samples": 5}
        arguments["tokens"] = Tokens(initial_balance=4, price=1)
        failing = FailingTurns((2, 1, 0), (2, 2, 1), (3, 0, 0), (3, 1, 1), (4, 3, 0), (4, 4, 1))
        return [TierBidding(num_tiers=2, **arguments), ShapleyRewards(num_samples=4), failing]
    if algorithm == "soft":
        return [SoftAveraging(num_models=2, num_samples=5), ClientArrivals(rounds={"client_1": 3})]
    if algorithm == "pfedgraph":
        return [PFedGraph(lam=0.5), ClientArrivals(rounds={"client_1": 3}), PersonalLayers(layers=["linear.bias"])]
    if algorithm in ("flsc", "fedsoft"):
        drawn: dict[str, Any] = {"lam": 0.5, "clients_per_model": 2, "num_samples": 5}
        several = FLSC(num_clusters=3, num_best=2) if algorithm == "flsc" else FedSoft(num_models=2, **drawn)
        return [several, ClientArrivals(rounds={"client_1": 3}), UniformSampling(cohort_size=5)]
    if algorithm in ("cfl", "kmeans"):
        chosen = CFL(mean_norm=2.0) if algorithm == "cfl" else KMeans(num_clusters=2)
        return [chosen, ClientArrivals(rounds={"client_1": 3}), PersonalLayers(layers=["linear.bias"])]
    if algorithm in ("ifca", "fesem"):
        clustered = IFCA(num_clusters=2, num_samples=5) if algorithm == "ifca" else FeSEM(num_clusters=2)
        return [clustered, ClientArrivals(rounds={"client_1": 3}), UniformSampling(cohort_size=4)]
    late = [ClientArrivals(rounds={"client_1": 3}), PersonalLayers(layers=["linear.bias"]), LocalReference()]
    return [HCCT(relative_trade_off=0.3, layer="auto", every_n_rounds=2), *late, FineTuning(steps=2)]


def settings(root: str, rounds: int) -> dict[str, Any]:
    """What all runs that are compared have in common."""
    return {
        "max_rounds": rounds,
        "local_steps": 3,
        "optimizer_state": "keep",
        "default_root_dir": root,
        "enable_progress_bar": False,
        "seed": 5,
    }


def settings_of(algorithm: str) -> dict[str, Any]:
    """What an algorithm's runs have besides."""
    if algorithm == "stacked":
        return {"stacked_clients": 3, "optimizer_state": "fresh"}
    if algorithm == "learner":
        return {"strategy": Everything()}
    if algorithm == "afl":
        return {"local_steps": 1}
    if algorithm == "gathering":
        return {"local_steps": None, "timeout": 900}
    return {"on_client_error": "skip"} if algorithm == "tiers" else {}


def federation(algorithm: str) -> tuple[Any, Any]:
    """The module and the data."""
    if algorithm in ("tiers", "soft", "fedsoft", "flsc", "ifca", "fesem"):
        return CornerModule(), MixedClients()
    if algorithm in ("stacked", "learner"):
        return TinyModule(norm=True), TinyClients((24, 10, 18, 7, 3, 16, 24))
    if algorithm == "states":
        return StatefulModule(), TinyClients()
    if algorithm == "averages":
        return AveragedModule(), TinyClients()
    if algorithm == "gathering":
        return GatheringModule(), SampledClients()
    return TinyModule(dropout=0.2, norm=True), TinyClients()


def outcome(trainer: FederatedTrainer, data: Any) -> dict[str, Any]:
    """What came of a run, the same on every rank and with any number of processes."""
    tiers = [one for one in trainer.callbacks if isinstance(one, TierBidding)]
    return {
        "weights": digest(trainer.models[0]),
        "models": [digest(model) for model in trainer.models],
        "test": next(iter(trainer.metrics["test"].values())).clients,
        "shares": trainer.collaboration.personalisation.tolist(),
        "communication": trainer.communication.summary(data.client_names()),
        "gains": {name: gain.clients for name, gain in trainer.gains.get("test", {}).items()},
        "distances": [c.distances.tolist() for c in trainer.callbacks if isinstance(c, FedCollab)],
        "chosen": [c.chosen for c in trainer.callbacks if isinstance(c, CollaborationGraph)],
        "contributions": [c.by_model for c in trainer.callbacks if isinstance(c, ShapleyRewards)],
        "tiers": [[c.first_tiers, [[one.bids, one.cohorts, one.balances] for one in c.rounds]] for c in tiers],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--num-nodes", type=int, default=1)
    parser.add_argument("--meet-in-round", type=int, help="where the run meets the test")
    parser.add_argument("--algorithm", default="drflm")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--compile", help="backend of torch.compile")
    parser.add_argument("--silos", help="a folder with rank_R/silo_I.pt for the silos that rank R may open")
    arguments = parser.parse_args()

    from lightning_fl.callbacks import ModelCheckpoint

    met = [Meeting(arguments.meet_in_round)] if arguments.meet_in_round else []
    trainer = FederatedTrainer(
        accelerator="cpu",
        devices=arguments.devices,
        num_nodes=arguments.num_nodes,
        callbacks=[*callbacks(arguments.algorithm), ModelCheckpoint(every_n_rounds=1), *met],
        profile=arguments.profile,
        compile={"backend": arguments.compile} if arguments.compile else False,
        **settings(arguments.root, arguments.rounds) | settings_of(arguments.algorithm),
    )
    module, data = federation(arguments.algorithm)
    opened: set[str] = set()
    if arguments.silos:
        sys.addaudithook(lambda event, details: opened.add(str(details[0])) if event == "open" else None)
        trainer.launch()
        folder = Path(arguments.silos) / f"rank_{trainer.fabric.global_rank}"
        data = Silos([FolderSilo(str(folder / f"silo_{i}.pt")) for i in range(4)])
    trainer.fit(module, data)
    trainer.test(module, data)
    record = {
        **outcome(trainer, data),
        "num_processes": trainer.fabric.world_size,
        "hosted": trainer.hosted_clients,
        "opened": sorted(Path(name).name for name in opened if "silo_" in name),
    }
    out = Path(arguments.out)
    out.with_name(f"{out.stem}_{trainer.fabric.global_rank}.json").write_text(json.dumps(record))
    print(os.getpid(), record["weights"], torch.get_num_threads())


if __name__ == "__main__":
    main()
