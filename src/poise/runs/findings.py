"""What a run has found so far, as every checkpoint keeps it, and the result that it ends in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from poise.learner import Learner
from poise.runs.examiner import Exam, figures, matrix_in_percent, percent
from poise.runs.folder import CheckpointMeta
from poise.runs.plan import Plan
from poise.settings import ALL_IMAGES
from poise.training.ranks import World

#: The parts of a result's `seconds`, and what of the total was spent until the exam of phase 0.
SECONDS: Final = ("train", "policy", "evaluate", "total")
SECONDS_PHASE_0: Final = "phase_0"


@dataclass
class Findings:
    """The exam, action and size of the memory of each phase that has ended, and the seconds spent so far."""

    exams: list[Exam] = field(default_factory=list)
    actions: list[dict[str, Any]] = field(default_factory=list)
    stored: list[dict[str, int]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SECONDS, 0.0))

    @classmethod
    def from_json(cls, values: CheckpointMeta) -> Findings:
        """Read what `as_json` wrote."""
        return cls([Exam(**exam) for exam in values.exams], values.actions, values.stored, values.seconds)

    def as_json(self) -> dict[str, Any]:
        """The values for a checkpoint."""
        return {**vars(self), "exams": [exam.values() for exam in self.exams]}

    def add(self, exam: Exam, learner: Learner) -> None:
        """Add a phase that has ended."""
        self.exams.append(exam)
        self.actions.append({**learner.action_, "classifier": learner.classifier_})
        kept = len(learner.memory_ or ())
        self.stored.append({"stored_images": kept, "held_images": learner.held_, "budget_images": learner.budget_})

    def result(self, plan: Plan, described: Mapping[str, Any], world: World) -> dict[str, Any]:
        """The result of the finished run of `plan`: what was run, its figures, and the curve over the phases.

        `described` is what `recipe.json` says.
        """
        recipe = plan.recipe
        return {
            "recipe": plan.name,
            "data": plan.source.name,
            "method": recipe.method,
            "policy": recipe.policy,
            "resolved_policy": plan.settings.resolved_policy(),
            "setting": recipe.setting,
            "phases": recipe.phases if recipe.setting != "groups" else len(plan.stream),
            "order": recipe.order,
            "memory": plan.settings.memory.model_dump(mode="json", exclude_none=True),
            **plan.stronger,
            **({"images_per_class": recipe.images_per_class} if plan.sizes else {}),
            **({"options": dict(recipe.options)} if recipe.options else {}),
            **({"oracle_all_images": True} if plan.settings.memory.rule == ALL_IMAGES else {}),
            **({"knows_increment": True} if plan.settings.memory.knows_increment else {}),
            "epochs": recipe.epochs,
            "space": described["space"],
            "exam": recipe.exam,
            "seed": recipe.seed,
            **{name: described[name] for name in ("pretrained_on",) if name in described},
            **({"ranks": world.size} if world.size > 1 else {}),
            **figures(self.exams, plan.stream),
            "accuracy_matrix": matrix_in_percent(self.exams, plan.stream),
            "seconds": {name: round(spent, 3) for name, spent in self.seconds.items()},
            "curve": [
                {
                    "phase": exam.phase,
                    "classes": len(exam.classes),
                    "accuracy": percent(exam.accuracy()),
                    "accuracy_fc": percent(exam.accuracy("fc")),
                    "accuracy_ncm": percent(exam.accuracy("ncm")),
                    **{f"accuracy_{name}": percent(exam.accuracy(name)) for name in exam.hits_of_start},
                    **stored,
                    "action": action,
                }
                for exam, action, stored in zip(self.exams, self.actions, self.stored, strict=True)
            ],
        }
