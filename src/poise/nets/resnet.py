"""The residual networks of the paper's line of work, which differ in more than their depth.

Four variants of one idea, and mixing them up costs points of accuracy:

- `lucir`: projection shortcuts (1×1 convolution and batch norm); no ReLU after the *last* addition, so
  that features can be negative, as a cosine head wants.
- `ordinary`: the same with its last ReLU, as LUCIR's repository trains its iCaRL baseline.
- `pod`: shortcuts without parameters; no ReLU after *any* addition; the last block is a level of its own
  (four levels of maps); the second batch norm of every block starts at zero.
- `foster`: shortcuts without parameters and a ReLU after every addition, as He et al. (2016) describe it.

A ResNet-18 has projection shortcuts in every variant. Its `pod` has a ReLU after the first addition of each level and
none after the second, so that the maps of its four levels can be negative; `foster` is the same as `ordinary`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from poise.data import usable_kernels
from poise.nets.base import FULL, Backbone, Features, make_layer

KERNELS = "poise.nets.fused"  # our own, where the GPU can run them
UNITS = "poise.nets.units"  # those for whole levels
#: Widths of levels that have kernels of their own, where their maps have 512 / width pixels a side, and up to how many
#: convolutions they may have.
UNIT_WIDTHS: tuple[int, ...] = (16, 32, 64)
MOST_UNITS = 64
FUSED_WIDTHS = (8, 16, 32, 64, 128, 256, 512, 1024)  # numbers of channels that the fused kernels support
FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INDEX_LIMIT = 2**31  # a tensor this large cannot be indexed by the kernels
#: Widths of convolutions for which poise has kernels of its own, and on maps of up to how many pixels these are used.
#: With 64 channels cuDNN is faster; `benchmarks/step.py --kernels` says what they bring.
THIN = {16: INDEX_LIMIT, 32: INDEX_LIMIT}
_POD_18 = "pod of ResNet-18"  # a variant that is no user's word
#: Up to how many values batch norm is trained in fused kernels.
LARGEST_NORM = INDEX_LIMIT


class BatchNorm(nn.BatchNorm2d):
    """Batch norm without the count of batches, which nothing reads and which costs a kernel per layer and step.

    On a GPU it is trained in fused kernels, together with what follows it. `fuses = False` turns that off, for
    second derivatives.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width, dtype=FULL)
        self.num_batches_tracked = None
        self.fuses = True

    def forward(self, x: Tensor) -> Tensor:
        """The normalised values."""
        return self.normalise_and_add(x, None, relu=False)

    def normalise_and_add(self, x: Tensor, shortcut: Tensor | None, *, relu: bool) -> Tensor:
        """The normalised values plus `shortcut`, then ReLU if `relu`."""
        kernels = usable_kernels(KERNELS, x.device) if self.is_fused(x) else None
        if kernels is None:
            return _add_shortcut(super().forward(x), shortcut, relu=relu)
        values = self.weight, self.bias, self.running_mean, self.running_var
        found: Tensor = kernels.normalise(x, shortcut, *values, eps=self.eps, momentum=self.momentum, relu=relu)
        return found

    def is_fused(self, x: Tensor) -> bool:
        """Whether the fused kernels apply; not to a single value per channel, which torch refuses."""
        width = self.num_features
        fits = width in FUSED_WIDTHS and x.dtype in FUSED_DTYPES and width < x.numel() < LARGEST_NORM
        return fits and self.training and self.fuses and x.is_cuda

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:  # noqa: ANN401
        # Not by way of `nn.BatchNorm2d`, which adds the count to values that lack it.
        nn.Module._load_from_state_dict(self, state, prefix, *others)


class ScaledConv(nn.Module):
    """A convolution with frozen weights and one learned scale, initially 1, for each of its out × in kernels.

    The stable branch of AANets is made of them (`poise.nets.grown`).
    """

    weight: Tensor

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        assert conv.bias is None
        self.register_buffer("weight", conv.weight.detach().clone())
        self.scale = nn.Parameter(torch.ones_like(self.weight[:, :, :1, :1]))
        self.stride, self.padding = conv.stride[0], conv.padding[0]

    def forward(self, x: Tensor) -> Tensor:
        """The convolution with its scaled kernels."""
        return convolve(x, self.scaled(), self.stride, int(self.padding))

    def scaled(self) -> Tensor:
        """Its kernels, scaled."""
        return self.scale * self.weight

    def plain(self) -> nn.Conv2d:
        """An ordinary convolution with the same output."""
        width, width_in, size, _ = self.weight.shape
        conv = make_layer(nn.Conv2d, width_in, width, size, self.stride, self.padding, bias=False)
        conv.weight = nn.Parameter(self.scaled().detach())
        return conv.train(self.training)


class Block(nn.Module):
    """conv 3×3 – BN – ReLU – conv 3×3 – BN, plus shortcut, then ReLU if `relu`."""

    def __init__(self, width_in: int, width: int, stride: int, *, relu: bool, project: bool) -> None:
        super().__init__()
        self.conv1: nn.Module = make_layer(nn.Conv2d, width_in, width, 3, stride, 1, bias=False)
        self.bn1: nn.Module = BatchNorm(width)
        self.conv2: nn.Module = make_layer(nn.Conv2d, width, width, 3, 1, 1, bias=False)
        self.bn2: nn.Module = BatchNorm(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = Subsample(stride, width - width_in)
            if project:
                conv = make_layer(nn.Conv2d, width_in, width, 1, stride, bias=False)
                self.shortcut = nn.Sequential(conv, BatchNorm(width))
        self.width, self.stride, self.relu = width, stride, relu

    @property
    def is_ordinary(self) -> bool:
        """Whether its output has the shape of its input."""
        return isinstance(self.shortcut, nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        """The residual sum."""
        y = _apply_unit(self.conv1, self.bn1, x, None, relu=True)
        return _apply_unit(self.conv2, self.bn2, y, self.shortcut(x), relu=self.relu)

    def extra_repr(self) -> str:
        """What its parts do not show: captured steps are told apart by how their networks print."""
        return f"relu={self.relu}"


def _apply_unit(conv: nn.Module, norm: nn.Module, x: Tensor, shortcut: Tensor | None, *, relu: bool) -> Tensor:
    """Convolution, norm, plus shortcut, then ReLU, in as few kernels as possible."""
    if isinstance(norm, BatchNorm) and norm.fuses:
        return norm.normalise_and_add(_convolve_plainly(conv, x), shortcut, relu=relu)
    if _is_folded(conv) and _is_inference(conv, x):  # a teacher's
        kernels = _thin_kernels(x, conv.weight) if conv.stride == conv.padding == (1, 1) else None
        if kernels is not None:
            found: Tensor = kernels.convolve_thin_and_add(x, conv.weight, conv.bias, shortcut, relu=relu)
            return found
        aligned = conv.in_channels % 8 == 0  # as cuDNN's fused kernels want it
        if relu and aligned and not torch.are_deterministic_algorithms_enabled():
            shape = conv.stride, conv.padding, conv.dilation, conv.groups
            if shortcut is None:
                return torch.cudnn_convolution_relu(x, conv.weight, conv.bias, *shape)  # type: ignore[arg-type]
            return torch.cudnn_convolution_add_relu(x, conv.weight, shortcut, 1.0, conv.bias, *shape)  # type: ignore[arg-type]
    return _add_shortcut(norm(conv(x)), shortcut, relu=relu)


def _convolve_plainly(conv: nn.Module, x: Tensor) -> Tensor:
    """The output of a convolution that no norm is folded into."""
    if type(conv) is nn.Conv2d and conv.bias is None:
        return convolve(x, conv.weight, conv.stride[0], int(conv.padding[0]))
    through: Tensor = conv(x)
    return through


def convolve(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """A convolution without bias, by poise's own kernels where they are faster than cuDNN's."""
    kernels = _thin_kernels(x, weight) if x.is_cuda and stride == padding == 1 else None
    if kernels is None:
        return nn.functional.conv2d(x, weight, None, stride, padding)
    found: Tensor = kernels.convolve_thin(x, weight.to(x.dtype))
    return found


def _thin_kernels(x: Tensor, weight: Tensor) -> ModuleType | None:
    """Poise's own kernels, if it is one of the thin 3×3 convolutions on a GPU that they are for."""
    out, into, *size = weight.shape
    thin = out == into and size == [3, 3] and x.shape[2] * x.shape[3] <= THIN.get(out, 0)
    fits = thin and x.numel() < INDEX_LIMIT and x.dtype is torch.bfloat16
    return usable_kernels(KERNELS, x.device) if fits else None


def _is_folded(conv: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether it is a convolution with the bias that a norm leaves when it is folded."""
    return isinstance(conv, nn.Conv2d) and conv.bias is not None


def _is_inference(conv: nn.Conv2d, x: Tensor) -> bool:
    same = x.dtype is conv.weight.dtype is torch.bfloat16
    return same and x.is_cuda and not torch.is_grad_enabled()


def _add_shortcut(y: Tensor, shortcut: Tensor | None, *, relu: bool) -> Tensor:
    """Plus shortcut, then ReLU, written over `y`, which nobody else reads: not even the gradient of what made it."""
    if shortcut is not None:
        y = y.add_(shortcut) if y.dtype is shortcut.dtype else y + shortcut
    return torch.relu_(y) if relu else y


class Subsample(nn.Module):
    """The shortcut without parameters: every `stride`-th pixel, new channels filled with zeros."""

    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride = stride
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        """Subsample and widen."""
        return nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


class Level(nn.Sequential):
    """Blocks, one after the other; on a GPU in as few kernels as possible, where the level is thin.

    Kernels of their own take all of it but the first convolution of a block that has a stride.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The output of its last block."""
        blocks: list[Block] = list(self)  # type: ignore[arg-type]  # of nothing else
        norms = [norm for block in blocks for norm in (block.bn1, block.bn2)]
        if all(isinstance(norm, BatchNorm) and norm.is_fused(x) and norm.weight.dtype is FULL for norm in norms):
            kernels = _unit_kernels(x, blocks)
            if kernels is not None:
                convs, shortcut = _convs(blocks), None
                if not blocks[0].is_ordinary:
                    x, shortcut = _convolve_plainly(convs.pop(0), x), blocks[0].shortcut(x)
                weights = [conv.scaled() if isinstance(conv, ScaledConv) else conv.weight for conv in convs]
                trained: Tensor = kernels.train_level(x, weights, norms, [block.relu for block in blocks], shortcut)
                return trained
        elif not torch.is_grad_enabled():
            while blocks and not blocks[0].is_ordinary:
                x = blocks.pop(0)(x)
            kernels, convs = _unit_kernels(x, blocks), _convs(blocks)
            if kernels is not None and all(_is_folded(conv) and _is_inference(conv, x) for conv in convs):
                inferred: Tensor | None = kernels.infer_level(x, convs, [block.relu for block in blocks])
                if inferred is not None:
                    return inferred
        for block in blocks:
            x = block(x)
        return x


def _convs(blocks: Sequence[Block]) -> list[nn.Module]:
    return [conv for block in blocks for conv in (block.conv1, block.conv2)]


def _unit_kernels(x: Tensor, blocks: Sequence[Block]) -> ModuleType | None:
    """The kernels for levels, if these are blocks on a GPU that they are for."""
    if not blocks or 2 * len(blocks) > MOST_UNITS or not x.is_cuda or x.dtype is not torch.bfloat16:
        return None
    width, stride = blocks[0].width, blocks[0].stride
    fits = width in UNIT_WIDTHS and list(x.shape[2:]) == [512 // width * stride] * 2 and 0 < x.numel() < INDEX_LIMIT
    return usable_kernels(UNITS, x.device) if fits else None


class Stem(nn.Sequential):
    """Convolution, batch norm, ReLU, and what follows them; on a GPU in as few kernels as in a block."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolution – norm – ReLU (– pooling) of images."""
        conv, norm, _, *others = self
        x = _apply_unit(conv, norm, x, None, relu=True)
        for layer in others:
            x = layer(x)
        return x


class ResNet(Backbone):
    """A stem, levels of blocks, and global average pooling; `maps` are the outputs of the levels."""

    def __init__(self, stem: nn.Module, levels: Sequence[nn.Module], width: int) -> None:
        super().__init__(width)
        self.stem = stem
        self.levels = nn.ModuleList(levels)

    def forward(self, x: Tensor) -> Features:
        """The pooled vector and the map of each level."""
        x, maps = self.stem(x), []
        for level in self.levels:
            x = level(x)
            maps.append(x)
        return Features(x.mean(dim=(2, 3)), tuple(maps))

    def fold(self) -> None:
        """Fold its norms, for inference alone; those that are folded already stay as they are."""
        for module in list(self.modules()):
            if isinstance(module, Block):
                module.conv1, module.bn1 = _fold(module.conv1, module.bn1)
                module.conv2, module.bn2 = _fold(module.conv2, module.bn2)
            elif isinstance(module, nn.Sequential):
                for index in range(len(module) - 1):
                    module[index], module[index + 1] = _fold(module[index], module[index + 1])


def _fold(conv: nn.Module, norm: nn.Module) -> tuple[nn.Module, nn.Module]:
    if not isinstance(conv, nn.Conv2d) or not isinstance(norm, nn.BatchNorm2d):
        return conv, norm
    return fuse_conv_bn_eval(conv, norm), nn.Identity()


def cifar_resnet(
    variant: str, channels: int, blocks: tuple[int, ...], widths: tuple[int, ...], *, stride: int = 1
) -> ResNet:
    """A ResNet for small images: 3×3 stem at full resolution, stride 2 where the width grows.

    ResNet-32 is `blocks=(5, 5, 5), widths=(16, 32, 64)`. With a `stride` the stem looks at every so many pixels, with
    a window of twice the stride less one: for larger images at the cost of small ones.
    """
    size = max(3, 2 * stride - 1)
    stem = nn.Sequential(
        make_layer(nn.Conv2d, channels, widths[0], size, stride, size // 2, bias=False),
        BatchNorm(widths[0]),
        nn.ReLU(),
    )
    levels = _levels(variant, blocks, widths)
    if variant == "pod":  # the last block is a level of its own
        *before, last = levels.pop()
        levels += [Level(*part) for part in (before, [last]) if part]
    return ResNet(stem, levels, widths[-1])


def resnet18(variant: str, channels: int, *, size: int, stride: int, pool: bool) -> ResNet:
    """ResNet-18, four levels of two blocks, with a stem of this `size` and `stride`, and max-pooling after it or not.

    `size=7, stride=2, pool=True` is He et al.'s for images of 224 pixels, which LUCIR uses; `size=3, stride=1,
    pool=True` is PODNet's, whose maps have twice the resolution; without pooling it is DER's for images of 32 pixels.
    """
    widths = (64, 128, 256, 512)
    conv = make_layer(nn.Conv2d, channels, widths[0], size, stride, size // 2, bias=False)
    layers = conv, BatchNorm(widths[0]), nn.ReLU()
    stem = Stem(*layers, nn.MaxPool2d(3, 2, 1)) if pool else nn.Sequential(*layers)
    variant = {"foster": "ordinary", "pod": _POD_18}.get(variant, variant)  # all have projection shortcuts
    return ResNet(stem, _levels(variant, (2, 2, 2, 2), widths), widths[-1])


def initialise(net: ResNet, generator: torch.Generator, *, zero_last_norm: bool) -> None:
    """Kaiming-normal convolutions (fan out), batch norms at 1 and 0, drawn from `generator` only."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
    if zero_last_norm:
        for module in net.modules():
            if isinstance(module, Block) and isinstance(module.bn2, nn.BatchNorm2d):
                nn.init.zeros_(module.bn2.weight)


def _levels(variant: str, blocks: tuple[int, ...], widths: tuple[int, ...]) -> list[Level]:
    levels: list[Level] = []
    width_in = widths[0]
    for number, (count, width) in enumerate(zip(blocks, widths, strict=True)):
        level = Level()
        for index in range(count):
            ends_level = index == count - 1
            stride = 2 if index == 0 and number > 0 else 1
            linear = {"lucir": ends_level and number == len(blocks) - 1, "pod": True, _POD_18: ends_level}
            relu, project = not linear.get(variant, False), variant not in ("foster", "pod")
            level.append(Block(width_in, width, stride, relu=relu, project=project))
            width_in = width
        levels.append(level)
    return levels
