"""Networks side by side: what is frozen computes as before, is folded, and is kept once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from poise.nets import Backbone, Concatenated, Frozen, Model, NewestHead, RenewedHead, build_backbone, build_head

from .test_branches import as_if_trained, generator, images


def trained_net(seed: int = 0, name: str = "small/ordinary") -> Backbone:
    net = build_backbone(name, "", 3, seed)
    as_if_trained(net, seed + 1)
    return net


def doubled() -> Concatenated:
    """A frozen network, and a newest one that was trained on from it."""
    net = Concatenated.expanding(trained_net())
    as_if_trained(net.newest, seed=5)
    return net


def model_of(net: Backbone) -> Model:
    model = Model(net, build_head("renewed", net.width))
    model.head.grow(3, generator(3))
    return model


def expanded(model: Model) -> Model:
    model.expand(Concatenated.expanding, (3, 2), (3, 8, 8))  # type: ignore[arg-type]
    return model


@pytest.mark.parametrize("name", ["small/ordinary", "small/foster", "resnet32/ordinary", "cifar-resnet18/ordinary"])
def test_frozen_it_computes_what_it_did_in_eval_mode(name: str) -> None:
    net = trained_net(name=name).eval()
    frozen = Frozen(net).train()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in frozen.modules())
    assert not any(module.training for module in frozen.modules())
    assert not any(value.requires_grad for value in frozen.parameters())
    found = frozen(images())
    torch.testing.assert_close(found.vector, net(images()).vector, rtol=1e-4, atol=1e-5)
    assert not found.vector.requires_grad
    assert any(isinstance(module, nn.BatchNorm2d) for module in net.modules()), "the network itself is left alone"


@pytest.mark.parametrize("training", [False, True])
def test_features_are_those_of_all_networks_and_the_newest_come_last(training: bool) -> None:
    net = doubled().train(training)
    found = net(images())
    assert (net.width, found.vector.shape) == (128, (len(images()), 128))
    torch.testing.assert_close(found.vector[:, :64], net.frozen[0](images()).vector)
    newest = copy.deepcopy(net.newest)(images()).vector
    torch.testing.assert_close(found.vector[:, 64:], newest, rtol=1e-4, atol=1e-5)
    assert len(found.maps) == (0 if training else 1)
    if not training:
        assert found.maps[0].shape[1] == 128


def test_the_newest_network_starts_as_the_one_before_and_only_it_is_trained() -> None:
    first = trained_net()
    net = Concatenated.expanding(first)
    again = Concatenated.expanding(net)
    assert [type(each) for each in again.frozen] == [Frozen, Frozen]
    assert again.frozen[0] is net.frozen[0]
    for name, value in first.state_dict().items():
        assert torch.equal(again.newest.state_dict()[name], value)
    again.train()(images()).vector.sum().backward()
    assert {name.split(".")[0] for name, value in again.named_parameters() if value.grad is not None} == {"newest"}


class TestInAModel:
    def test_copies_share_what_is_frozen_and_have_their_own_of_the_rest(self) -> None:
        model = expanded(expanded(model_of(trained_net())))
        copied = model.copy()
        assert isinstance(model.backbone, Concatenated)
        assert isinstance(copied.backbone, Concatenated)
        for one, other in zip(model.backbone.frozen, copied.backbone.frozen, strict=True):
            assert one is other
        assert copied.backbone.newest is not model.backbone.newest
        assert not [name for name in model.changing() if ".frozen." in name]
        assert model.frozen[1] == ["frozen.0", "frozen.1"]


class TestInAnotherFormat:
    def low(self, frozen: Frozen) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            found: Tensor = frozen(images()).vector
        return found

    def test_weights_are_cast_once_for_all_that_share_them_and_are_no_part_of_the_state(self) -> None:
        model = model_of(doubled()).placed(torch.device("cpu"))
        assert isinstance(model.backbone, Concatenated)
        frozen = model.backbone.frozen[0]
        assert isinstance(frozen, Frozen)
        names = set(frozen.state_dict())
        found = self.low(frozen)
        (cast,) = frozen._cast.values()
        assert {value.dtype for value in cast.parameters()} == {torch.bfloat16}
        model.copy()(images())
        model.placed(torch.device("cpu"))
        assert torch.equal(self.low(frozen), found)
        assert frozen._cast[torch.bfloat16] is cast, "a captured step may read from it"
        assert set(frozen.state_dict()) == names
        assert {value.dtype for value in frozen.parameters()} == {torch.float32}
        torch.testing.assert_close(found.float(), frozen(images()).vector, rtol=0.05, atol=0.1)

    def test_other_weights_reach_the_cast_ones_in_place(self) -> None:
        frozen, other = Frozen(trained_net(0)), Frozen(trained_net(3))
        self.low(frozen)
        place = next(iter(frozen._cast[torch.bfloat16].parameters())).data_ptr()
        frozen.load_state_dict(other.state_dict())
        assert torch.equal(self.low(frozen), self.low(other))
        assert next(iter(frozen._cast[torch.bfloat16].parameters())).data_ptr() == place

    def test_moved_to_another_format_it_is_cast_again(self) -> None:
        frozen = Frozen(trained_net())
        self.low(frozen)
        assert not frozen.to(torch.float64)._cast


def test_a_head_of_the_newest_features_sees_no_others() -> None:
    head = NewestHead(RenewedHead(3))
    head.head.grow(2, generator())
    features = torch.randn(4, 7, generator=generator(1))
    assert torch.equal(head(features), features[:, 4:] @ head.head.rows().T)


class TestRenewedHead:
    def test_nothing_of_old_rows_is_taken_over(self) -> None:
        head = RenewedHead(400)
        head.grow(20, generator(0))
        before = head.rows().detach().clone()
        head.grow(20, generator(1))
        assert head.rows().shape == (40, 400)
        assert not torch.equal(head.rows()[:20], before)
        assert head.rows().std().item() == pytest.approx(1 / 20, rel=0.05)

    def test_renewed_in_place_it_is_uniform(self) -> None:
        head = RenewedHead(400)
        for count in (20, 30):
            head.grow(count, generator(count))
        places = [head.old.data_ptr(), head.new.data_ptr()]
        head.renew(generator(2))
        assert [head.old.data_ptr(), head.new.data_ptr()] == places
        assert head.rows().abs().max().item() <= 1 / 20
        assert head.rows().std().item() == pytest.approx(1 / 20 / 3**0.5, rel=0.05)
