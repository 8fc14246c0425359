"""Run folders whose every number is known, written the way a run writes them; and one that was really run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from poise import store
from poise.runs import Run, RunFolder, load_recipe, make_plan
from poise.runs.journal import Journal

SPACE = {
    "name": "grid",
    "axes": {"feature_kd": [0.5, 1.0], "lr": [0.1, 0.05]},
    "actions": 4,
    "default": {"classifier": "auto", "feature_kd": 1.0, "lr": 0.1},
}
IMAGES = 50  # of each class in an exam
Write = Callable[..., Path]


def recipe(**keys: Any) -> dict[str, Any]:
    """The resolved keys of a run."""
    usual: dict[str, Any] = {"data": "toy", "method": "lucir", "setting": "tfs", "phases": 3, "groups": None}
    usual |= {
        "memory": {"per_class": 20, "total": None, "reserve": 0},
        "epochs": 160,
        "batch": 128,
        "order": 1993,
        "exam": "test",
    }
    usual |= {"policy": "fixed", "policy_options": {}, "space": None, "tune": None, "action": {}, "seed": 0}
    return {**usual, **keys}


def journal(hits: Sequence[Sequence[int]], policy: str, classifier: str = "fc") -> list[dict[str, Any]]:
    """One class arrives in each phase; `hits` are those of each exam, class by class, in the order they came.

    FC has those hits, and NCM one image fewer of each class.
    """
    events: list[dict[str, Any]] = []
    for phase, right in enumerate(hits):
        action = {"classifier": classifier, "feature_kd": 1.0 if phase % 2 else 0.5, "lr": 0.1}
        labels = [9 - label for label in range(phase + 1)]  # they come from the last to the first
        if policy != "fixed" and phase:
            events += [_trial(phase, arm, 0.1 * arm + 0.01 * phase) for arm in range(4)]
        decided: dict[str, Any] = {"event": "action", "phase": phase, "policy": policy, "action": action}
        events += [decided, {"event": "epoch", "phase": phase, "stage": "main", "epoch": 1, "epochs": 1}]
        events += [{"event": "learned", "phase": phase, "classifier": classifier, "memory_images": 20 * (phase + 1)}]
        wrong = [[9 - place, 9, IMAGES - count] for place, count in enumerate(right) if place and count < IMAGES]
        exam: dict[str, Any] = {"event": "exam", "phase": phase, "classifier": classifier, "classes": labels}
        exam |= {
            "images": [IMAGES] * len(labels),
            "hits_fc": list(right),
            "hits_ncm": [max(0, count - 1) for count in right],
        }
        exam |= {"confusion": [*([9 - place, 9 - place, count] for place, count in enumerate(right)), *wrong]}
        events.append({**exam, "accuracy": 100 * sum(exam[f"hits_{classifier}"]) / (IMAGES * len(right))})
    return events


def _trial(phase: int, arm: int, reward: float) -> dict[str, Any]:
    action = {"classifier": "auto", "feature_kd": (0.5, 1.0)[arm // 2], "lr": (0.1, 0.05)[arm % 2]}
    plan = {"id": arm, "arm": arm, "epochs": 4, "full": False, "round": 0}
    record = {"images": [10], "hits": {"4": {"fc": [round(10 * reward)], "ncm": [0]}}}
    told = {"classifier": "fc", "reward": reward, "diverged": False, "record": record}
    return {"event": "trial", "phase": phase, "trial": plan, "action": action, **told}


def result(keys: Mapping[str, Any], events: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """What result.json says of such a journal."""
    names = ("data", "method", "policy", "setting", "phases", "order", "memory", "epochs")
    exams = [event for event in events if event["event"] == "exam"]
    accuracies = [exam["accuracy"] for exam in exams]
    curve = [
        {
            "phase": exam["phase"],
            "classes": len(exam["classes"]),
            "accuracy": exam["accuracy"],
            "accuracy_fc": 100 * sum(exam["hits_fc"]) / sum(exam["images"]),
            "accuracy_ncm": 100 * sum(exam["hits_ncm"]) / sum(exam["images"]),
            "stored_images": 20 * len(exam["classes"]),
            "held_images": 80 + 20 * len(exam["classes"]),
            "budget_images": 80 + 25 * len(exam["classes"]),
            "action": {"classifier": exam["classifier"], "feature_kd": 1.0 if exam["phase"] % 2 else 0.5, "lr": 0.1},
        }
        for exam in exams
    ]
    shown = {name: keys[name] for name in names}
    return {
        "recipe": f"{keys['data']}/{keys['method']}",
        **shown,
        "resolved_policy": {"name": keys["policy"]},
        "space": SPACE if keys["policy"] != "fixed" else None,
        "exam": keys["exam"],
        "seed": keys["seed"],
        "average_accuracy": round(sum(accuracies) / len(accuracies), 4),
        "average_accuracy_after_phase_0": round(sum(accuracies[1:]) / max(1, len(accuracies) - 1), 4),
        "last_accuracy": accuracies[-1],
        "average_forgetting": 1.25,
        "seconds": {"train": seconds - 2, "policy": 1.0, "evaluate": 1.0, "total": seconds},
        "curve": curve,
    }


def dump(path: Path, value: Mapping[str, Any], *, digest: bool = False) -> None:
    """As `store.write_json` does, but the disk need not be waited for."""
    document = {"format": store.PLAIN_FORMAT, **value}
    own = {"digest": store.digest_of(document)} if digest else {}
    path.write_text(json.dumps({**document, **own}, ensure_ascii=False), encoding="utf-8", errors="backslashreplace")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a run folder: `hits` per exam, and keys of its recipe; `finished=False` leaves the result out."""

    def written(
        name: str,
        hits: Sequence[Sequence[int]] = ((50,), (40, 45), (30, 40, 50)),
        *,
        finished: bool = True,
        seconds: float = 10.0,
        classifier: str = "fc",
        more: Mapping[str, Any] | None = None,
        start_fingerprint: str | None = None,
        machine: Mapping[str, Any] | None = None,
        **keys: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        chosen = recipe(**keys)
        tuned = chosen["policy"] != "fixed"
        events = journal(hits, chosen["policy"], classifier)
        saved: dict[str, Any] = {"name": f"{chosen['data']}/{chosen['method']}", "recipe": chosen, "fingerprint": "f"}
        saved |= {"class_names": [f"class {label}" for label in range(10)], "space": SPACE if tuned else None}
        if start_fingerprint is not None:
            saved["start_fingerprint"] = start_fingerprint
        dump(folder / "recipe.json", {**saved, **({"runner": "audit"} if (more or {}).get("leak") else {})})
        dump(folder / "machine.json", {"hardware": {"processor": "an abacus"}, "threads": 1, **(machine or {})})
        told = Journal(folder / "journal.jsonl")
        for event in events:
            told.append(event)
        told.close()
        if finished:
            dump(folder / "result.json", {**result(chosen, events, seconds), **(more or {})}, digest=True)
        return folder

    return written


@pytest.fixture
def pairs(write: Write) -> Path:
    """Three paired seeds of LUCIR with and without a policy, TFH and TFS; the policy gains in TFS only."""
    base = {"tfs": (30, 31, 32), "tfh": (30, 31, 32)}
    more = {"tfs": (40, 42, 41), "tfh": (29, 33, 31)}
    for setting in ("tfs", "tfh"):
        for policy, hits in (("fixed", base[setting]), ("online", more[setting])):
            for seed, count in enumerate(hits):
                exams = ((50,), (count, 45), (count, 40, 50))
                write(f"all/{policy}-{setting}-{seed}", exams, setting=setting, policy=policy, seed=seed)
    return write("all/extra", seed=7, method="icarl").parent


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny run that tuned something."""
    folder = tmp_path_factory.mktemp("report") / "run"
    words = ("groups=[2,1,1]", "epochs=1", "batch=64", "policy=hedge", "space={lr=[0.1,0.02]}")
    Run(make_plan("digits/lucir", load_recipe("digits/lucir", words)), RunFolder(folder)).start()
    return folder
