import json

import pandas as pd
import pytest
import yaml
from study_tiny import record

from lightning_fl.study.finished_run import FinishedRun


@pytest.fixture
def make_run(tmp_path):
    """Writes a run's folder and reads it: clients' values, seed and what else differs from a plain FedAvg run."""

    def make(
        name,
        values,
        *,
        seed=0,
        metric="acc",
        higher=True,
        gains=None,
        data=None,
        config=True,
        callbacks=(),
        curves=None,
        more=None,
        **summary,
    ):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        clients = values if isinstance(values, dict) else {f"c{number}": value for number, value in enumerate(values)}
        content = {
            "title": "Model on measured data",
            "data_source": "measured",
            "data": {
                "source": "measured",
                "num_clients": len(clients),
                "name": "digits",
                "licence": "CC BY 4.0",
                "sha256": "ab" * 32,
                "partitioner": {"name": "Dirichlet", "alpha": 0.5},
                "split": [0.6, 0.1, 0.3],
                "split_seed": seed,
                "normalization": {"mean": [0.1 * seed], "std": [1.0]},
                "client_names": list(clients),
                "client_sizes": {"train": [10 + seed] * len(clients)},
                **(data or {}),
            },
            "strategy": "FedAvg",
            "callbacks": ["SaveConfig", *(callback["class_path"] for callback in callbacks), "ModelCheckpoint"],
            "seed": seed,
            "num_clients": len(clients),
            "client_names": list(clients),
            "rounds": 5,
            "wall_time_seconds": 12.5,
            "interrupted": False,
            "metrics": {
                "test": {metric: record(clients, higher), **(more or {})},
                **({} if curves is None else {"val": {metric: record(clients, higher)}}),
            },
            **summary,
        }
        if gains is not None:
            of_clients = dict(zip(clients, gains, strict=True))
            content["gains_over_local_training"] = {"test": {metric: {"clients": of_clients}}}
        (folder / "summary.json").write_text(json.dumps(content))
        if config is not False:
            recipe = {
                "seed_everything": seed,
                "trainer": {
                    "strategy": "fedavg",
                    "max_rounds": 5,
                    "callbacks": list(callbacks),
                    "default_root_dir": str(folder.parent),
                },
                "model": {"class_path": "my.Model", "init_args": {"hidden_sizes": [64], "dropout": None}},
            }
            for path, value in (config if isinstance(config, dict) else {}).items():
                *parents, last = path.split(".")
                node = recipe
                for parent in parents:
                    node = node[parent]
                node[last] = value
            (folder / "config.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
        if curves is not None:
            pd.DataFrame(curves).to_csv(folder / "metrics.csv", index=False)
        return FinishedRun.read(folder)

    return make
