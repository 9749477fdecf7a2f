"""What compensation of drift is worth to the rivals that keep training: each with and without it, the same seed.

    CIRCLE_DATA=... python benchmarks/drift_compensation.py --images 100 --initial-epochs 30 --epochs 5 \\
        --output results/compensation.json

A class-balanced part of CIFAR-100 in ten tasks, a narrow ResNet. ADC, EFC++ and AdaGauss move what they keep of old
classes after the features (``--rival.compensation``, ``--rival.drift-sigma``); PASS and IL2A have no such step, and
rehearse old classes by their statistics instead (``--rival.prototype-weight``). Methods that are in the output
already are left out, so that a killed run goes on. This is a measurement, not a test.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from circle.baselines.trainer import TrainerConfig
from circle.data.datasets import Dataset, load_dataset
from circle.method import Task, predict
from circle.registry import entry

TASKS = 10
OFF = {
    "adc": {"compensation": "none"},
    "adagauss": {"compensation": "none"},
    "efc_plus_plus": {"drift_sigma": -1.0},
    "pass": {"prototype_weight": 0.0},
    "il2a": {"prototype_weight": 0.0},
}


def config_of(arguments: argparse.Namespace, name: str, *, compensated: bool) -> TrainerConfig:
    """A narrow network, so many epochs in the first and in later tasks; the step size falls after half of them."""
    config, initial, epochs = entry("method", name).config(), arguments.initial_epochs, arguments.epochs
    wishes = {"network": "resnet18", "width": arguments.width, "max_pool": True, "batch_size": 32}
    wishes |= {"initial_epochs": initial, "epochs": epochs, "learning_rate_step": max(1, epochs // 2)}
    wishes |= {
        "initial_milestones": (initial // 2,),
        "milestones": (epochs // 2,),
        "feature_size": 32,
        "pulled_images": 32,
        "balanced_epochs": 5,
    }
    if name == "adagauss":
        # Its term against collapse wants more images in a batch than values in a feature vector.
        wishes |= {"batch_size": 64, "draws": 1000}
    if not compensated:
        wishes |= OFF[name]
    return config.replace(**{key: value for key, value in wishes.items() if key in config.field_names()})


def run(config: TrainerConfig, dataset: Dataset, images: int) -> dict[str, object]:
    """Accuracy on the classes of all tasks but the last, and on the last's, at the end of the stream."""
    method = entry("method", config.name).part(config, seed=0)
    order = np.random.default_rng(0).permutation(len(dataset.classes))
    started = time.perf_counter()
    for classes in np.split(order, TASKS):
        chosen = np.concatenate([np.flatnonzero(dataset.train.labels == label)[:images] for label in classes])
        method.learn(Task(dataset.train[chosen], dataset.train.labels[chosen]))
    seconds = time.perf_counter() - started
    answers = np.asarray(predict(method, dataset.test[np.arange(len(dataset.test))]))
    right = answers == dataset.test.labels
    old = np.isin(dataset.test.labels, order[: -len(order) // TASKS])
    return {
        "old tasks": round(100 * float(right[old].mean()), 2),
        "last task": round(100 * float(right[~old].mean()), 2),
        "seconds": round(seconds),
        "images of each class": images,
        "config": config.to_dict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--methods", nargs="+", default=list(OFF), choices=list(OFF))
    parser.add_argument("--images", type=int, default=100, help="of each class")
    parser.add_argument("--initial-epochs", type=int, default=30, help="of the first task")
    parser.add_argument("--epochs", type=int, default=5, help="of each later task")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--output", type=Path, default=Path("results/compensation.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset = load_dataset("cifar100")
    found = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    for name in arguments.methods:
        for kind in ("with", "without"):
            if kind in found.get(name, {}):
                continue
            config = config_of(arguments, name, compensated=kind == "with")
            found.setdefault(name, {})[kind] = result = run(config, dataset, arguments.images)
            arguments.output.write_text(json.dumps(found, indent=1) + "\n")
            print(f"{name}, {kind}: {result['old tasks']} % old tasks, {result['last task']} % last task", flush=True)


if __name__ == "__main__":
    main()
