"""What AANets adds to the method it is made on; what every method must do is in the conformance tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from poise import Learner, draws
from poise.data import Augmentation, ImageSet, Preprocessing
from poise.errors import UserError
from poise.methods import AANets, Growth, GrowthInputs, Method, make_method
from poise.methods.aanets import BASES
from poise.nets import Branches, Model, ScaledConv, ScaledHead
from poise.training import EpochDone, Event, LocalPhase, Progress, Trainer

from .conftest import SETTINGS

MakeImages = Callable[..., ImageSet]
MakeTrainer = Callable[..., Trainer]
StopAndResume = Callable[..., tuple[list[Event], Learner]]
bases = pytest.mark.parametrize("base", sorted(BASES))


def learner_of(**options: float | str) -> Learner:
    return Learner("aanets", options=options, **SETTINGS)


def learned(arriving: list[ImageSet], **options: float | str) -> list[Model]:
    """The model after each phase."""
    learner, models = learner_of(**options), []
    for images in arriving:
        learner.partial_fit(images.pixels, images.labels)
        assert learner.model is not None
        models.append(learner.model)
    return models


def branches(model: Model) -> Branches:
    assert isinstance(model.backbone, Branches)
    return model.backbone


@bases
def test_convolutions_of_the_stable_branch_stay_those_of_the_first_phase(base: str, arriving: list[ImageSet]) -> None:
    first, *later = learned(arriving, base=base)
    assert not isinstance(first.backbone, Branches)
    convolutions = [module.weight for module in first.backbone.modules() if isinstance(module, nn.Conv2d)]
    for model in later:
        frozen = [module.weight for module in branches(model).stable.modules() if isinstance(module, ScaledConv)]
        for now, then in zip(frozen, convolutions, strict=True):
            assert torch.equal(now, then)


@bases
def test_all_else_moves_in_both_branches_in_every_phase(base: str, arriving: list[ImageSet]) -> None:
    _, *later = learned(arriving, base=base)
    fresh = {name: value.clone() for name, value in _start_of_second_phase(base, arriving[0]).items()}
    for before, after in zip([fresh, later[0].state_dict()], [model.state_dict() for model in later], strict=True):
        still = {name for name, value in after.items() if name in before and torch.equal(value, before[name])}
        frozen = {name for name in still if name.startswith("backbone.stable.") and name.endswith(".weight")}
        assert {name for name in still - frozen if name.startswith("backbone.")} == {"backbone.alpha"}
        assert len(frozen) == sum(isinstance(module, ScaledConv) for module in later[0].modules())


def _start_of_second_phase(base: str, images: ImageSet) -> dict[str, Tensor]:
    model = learned([images], base=base)[0]
    model.backbone = AANets(base=base).expanded(model.backbone, Growth(2, 2))
    return model.state_dict()


@bases
def test_a_fixed_share_stays_and_a_learned_one_moves_at_every_level(base: str, arriving: list[ImageSet]) -> None:
    fixed = branches(learned(arriving[:2], base=base, alpha=0.3)[-1]).alpha
    assert torch.equal(fixed, torch.full_like(fixed, 0.3))
    second, third = (branches(model).alpha for model in learned(arriving, base=base, alpha="learned")[1:])
    assert (second != 0.5).all()
    assert (third != second).all()


def test_every_phase_has_shares_of_its_own(arriving: list[ImageSet], make_images: MakeImages) -> None:
    third, fourth = learned([*arriving, make_images([6] * 6, seed=6)], alpha="learned")[2:]
    assert branches(third).alpha is not branches(fourth).alpha
    assert (branches(third).alpha != branches(fourth).alpha).any()
    copied = fourth.copy()
    assert branches(copied).alpha is not branches(fourth).alpha
    assert any(value.data_ptr() == branches(fourth).alpha.data_ptr() for value in fourth.changing().values())


def test_learned_shares_stay_between_0_and_1(arriving: list[ImageSet]) -> None:
    shares = branches(learned(arriving[:2], alpha="learned", alpha_lr=1e6)[-1]).alpha
    assert set(shares.tolist()) <= {0.0, 1.0}


def test_a_learner_of_two_branches_is_saved_and_read(arriving: list[ImageSet], tmp_path: Path) -> None:
    learner = learner_of(alpha="learned")
    for images in arriving[:2]:
        learner.partial_fit(images.pixels, images.labels)
    learner.save(tmp_path / "two.poise")
    read = Learner.load(tmp_path / "two.poise", device="cpu")
    for each in (learner, read):
        each.partial_fit(arriving[2].pixels, arriving[2].labels)
    assert read.predict_proba(arriving[2].pixels).tolist() == learner.predict_proba(arriving[2].pixels).tolist()


def test_a_learned_share_in_trials_goes_on_to_the_same_bytes(
    arriving: list[ImageSet], stop_and_resume: StopAndResume, tmp_path: Path
) -> None:
    learner = Learner(
        "aanets",
        options={"alpha": "learned"},
        policy="race",
        action={"classifier": "fc"},
        space={"lr": [0.1, 0.05]},
        trials={"length": 0.5},
        net="small",
        epochs=4,
        batch=16,
        memory=4,
        device="cpu",
    )
    learner.partial_fit(arriving[0].pixels, arriving[0].labels)
    learner.save(tmp_path / "first")
    images = arriving[1]
    whole = Learner.load(tmp_path / "first", device="cpu")
    events = [event for event in whole.fitting(images.pixels, images.labels) if not isinstance(event, Progress)]
    told, resumed = stop_and_resume(learner, images.pixels, images.labels, 2)
    assert type(told[1]).__name__ == "TrialDone"
    assert told == events
    for each, name in ((whole, "whole"), (resumed, "resumed")):
        each.save(tmp_path / name)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "resumed").read_bytes()


# The pass after each epoch --------------------------------------------------------------------------------------------

GROWTH = Growth(2, 2)
AUGMENTATION = Augmentation(pad=1)
PREPROCESSING = Preprocessing((0.5,) * 3, (0.25,) * 3, AUGMENTATION)


@bases
def test_shares_are_trained_on_a_balanced_set_with_a_fresh_gradient_in_every_step(
    base: str, make_images: MakeImages, make_trainer: MakeTrainer
) -> None:
    """Two epochs against SGD written out: α moves in the passes only, by the gradient of one batch at a time."""
    images, rate = make_images([0, 0, 0, 1, 1, 1, *[2] * 7, *[3] * 9]), 0.5
    method = AANets(base=base, alpha="learned", alpha_lr=rate)
    trainer = make_trainer(method, growth=GROWTH, images=images, preprocessing=PREPROCESSING, epochs=2, batch=4)
    assert trainer._picks is not None
    balanced = images.select(trainer._picks)
    assert balanced.labels.bincount().tolist() == [3, 3, 3, 3]
    steps = len(trainer.bounds)
    expected, epoch = branches(trainer.model).alpha.detach().clone(), 0
    velocity = torch.zeros_like(expected)
    for event in trainer.run():
        if isinstance(event, EpochDone) and event.stage == "main":
            torch.testing.assert_close(branches(trainer.model).alpha.detach(), expected, rtol=1e-4, atol=1e-6)
            epoch += 1
        elif trainer.stage == 0 and trainer.step == steps:  # the pass is what comes next
            trained = {name: value.clone() for name, value in trainer.model.state_dict().items()}
            generator = draws.generator(0, "epoch", 1, "fusion", epoch)
            order = torch.from_numpy(generator.permutation(len(balanced)))
            choices = AUGMENTATION.draw(len(balanced), generator)
            present = rate * (0.1 if epoch else 1.0)
            for first in range(0, len(order), 4):
                picks = order[first : first + 4]
                batch = PREPROCESSING.training(balanced.pixels[picks], choices.batch(first, first + 4))
                gradient = _gradient(trainer.model, method, expected, batch, balanced.labels[picks])
                velocity = 0.9 * velocity + gradient + 5e-4 * expected
                expected = expected - present * velocity
            expected = expected.clamp(0, 1)
            trainer.model.load_state_dict(trained)
    assert epoch == 2


def test_a_trainer_stands_ready_for_its_stage_and_not_for_the_pass_after_it(
    make_trainer: MakeTrainer, beginning: Callable[[Trainer], LocalPhase]
) -> None:
    """A step is captured with what is trained at that moment: made, begun again, restored and between epochs."""
    trainer = make_trainer(AANets(alpha="learned"), epochs=2)
    model, shares = trainer.model, branches(trainer.model).alpha

    def trained() -> set[Tensor]:
        return {parameter for parameter in model.parameters() if parameter.requires_grad}

    main, after = (
        {parameter for group in engine.optimiser.param_groups for parameter in group["params"]}
        for engine in (trainer._engines[0], trainer._afters[0])
    )
    assert after == {shares}
    assert trained() == main
    assert shares not in main
    state, begun = trainer.state(), beginning(trainer)
    trainer.restart(begun, trainer.action, None, ())
    assert trained() == main
    trainer.restore(*state)
    assert trained() == main
    steps = [trained() for event in trainer.run() if isinstance(event, Progress) and event.detail.startswith("main")]
    assert steps == [main] * len(steps)
    assert len(steps) == 2 * len(trainer._engines[0].bounds)


def _gradient(model: Model, method: Method, alpha: Tensor, batch: Tensor, labels: Tensor) -> Tensor:
    model.eval()
    share = alpha.clone().requires_grad_()
    output = torch.func.functional_call(model, {"backbone.alpha": share}, (batch,))
    (term,) = method.terms(output, None, labels, GROWTH).values()
    found: Tensor = torch.autograd.grad(term, share)[0].detach()
    model.train()
    return found


# Made of another method -----------------------------------------------------------------------------------------------


@bases
def test_the_learned_scale_starts_again_where_the_branches_are_made_and_only_there(
    base: str, arriving: list[ImageSet]
) -> None:
    for eta, scales in (("kept", [14.6, 14.6]), ("restarted", [1.0, 14.6])):
        method, model, found = AANets(base=base, eta=eta), learned(arriving[:1], base=base)[0].copy(), list[float]()
        for growth in (Growth(2, 2), Growth(4, 2)):
            assert isinstance(model.head, ScaledHead)
            nn.init.constant_(model.head.scale, 14.6)
            model.expand(partial(method.expanded, growth=growth), growth, arriving[0].shape)
            features = torch.rand(24, model.head.width), torch.arange(24) % 2
            method.grow(model, GrowthInputs(growth, torch.Generator(), lambda seen=features: seen))  # type: ignore[misc]
            found.append(model.head.scale.item())
        assert found == pytest.approx(scales)


def test_a_restarted_scale_is_learned_from_there(arriving: list[ImageSet]) -> None:
    kept, restarted = (learned(arriving[:2], eta=eta) for eta in ("kept", "restarted"))
    assert torch.equal(kept[0].head.rows(), restarted[0].head.rows()), "phase 0 is the same"
    assert not torch.equal(kept[1].head.rows(), restarted[1].head.rows())


@bases
def test_it_is_its_base_apart_from_the_branches(base: str) -> None:
    method, other = AANets(base=base), BASES[base]()
    assert (method.variant, method.head, method.brightness) == (other.variant, other.head, other.brightness)
    assert (method.default_action, method.choices, method.balancing) == (
        other.default_action,
        other.choices,
        other.balancing,
    )
    assert method.stages(GROWTH) == other.stages(GROWTH)
    assert AANets(base=base, alpha="learned").stages(Growth(0, 4)) == other.stages(Growth(0, 4))


def test_options_of_the_base_are_its_own_too() -> None:
    method = AANets(base="lucir", lambda_base=10.0)
    assert isinstance(method.base, BASES["lucir"])
    assert method.base.settings == {"lambda_base": 10.0}
    assert {"base", "alpha", "alpha_lr", "eta", "lambda_base"} == set(method.settings)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base": "icarl"}, "aanets base 'icarl'; known: lucir, podnet"),
        ({"base": "lucri"}, "did you mean 'lucir'"),
        ({"alpha": 1.5}, "alpha=1.5 must be a share between 0 and 1, or 'learned'"),
        ({"alpha": "learn"}, "must be a share between 0 and 1, or 'learned'"),
        ({"alpha_lr": 0.0}, "alpha_lr=0.0 must be a number above 0"),
        ({"eta": "restart"}, "eta='restart'; did you mean 'restarted'"),
        ({"eta": 1.0}, "eta=1.0; known: kept, restarted"),
        ({"alhpa": 0.5}, "method aanets has no option 'alhpa'; did you mean 'alpha'"),
        ({"base": "lucir", "lambda_base": -1.0}, "lambda_base=-1.0 must be a number above 0"),
    ],
)
def test_wrong_options_get_the_right_word(options: dict[str, float | str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_method("aanets", options)
