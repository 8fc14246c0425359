"""Kernels of our own that make what a network reads of stored images, a batch in one launch.

One shifts and normalises, the other crops and scales: for each new pixel a weighted sum of stored ones. Imported only
where a GPU is used. Where Triton is missing, torch's own operations are used.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from poise.data.crops import Crops, Rows

BLOCK = 256  # new pixels of a program


@triton.jit
def _weight(position, centre, support, length):
    """How much of the stored pixel at `position` is in a new one around `centre`: a triangle, nothing outside."""
    weight = tl.maximum(1.0 - tl.abs(position.to(tl.float32) + 0.5 - centre) / support, 0.0)
    return tl.where((position >= 0) & (position < length), weight, 0.0)


@triton.jit
def _crop(
    flat,
    places,
    heights,
    widths,
    indices,
    boxes,
    mirrored,
    found,
    channels: tl.constexpr,
    new_height: tl.constexpr,
    new_width: tl.constexpr,
    block: tl.constexpr,
):
    """Some new pixels of one image, all channels: first along rows, rounded to bytes, then along columns."""
    image = tl.program_id(0)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < new_height * new_width
    row, column = at // new_width, at % new_width
    column = tl.where(tl.load(mirrored + image) != 0, new_width - 1 - column, column)
    index = tl.load(indices + image)
    start = tl.load(places + index)
    height, width = tl.load(heights + index).to(tl.int32), tl.load(widths + index).to(tl.int32)
    scale_x = tl.load(boxes + 4 * image + 2) / new_width
    scale_y = tl.load(boxes + 4 * image + 3) / new_height
    centre_x = tl.load(boxes + 4 * image) + (column.to(tl.float32) + 0.5) * scale_x
    centre_y = tl.load(boxes + 4 * image + 1) + (row.to(tl.float32) + 0.5) * scale_y
    support_x, support_y = tl.maximum(scale_x, 1.0), tl.maximum(scale_y, 1.0)
    first_x = tl.floor(centre_x - support_x + 0.5).to(tl.int32)
    first_y = tl.floor(centre_y - support_y + 0.5).to(tl.int32)
    taps_x = tl.ceil(2.0 * support_x).to(tl.int32) + 1
    taps_y = tl.ceil(2.0 * support_y).to(tl.int32) + 1
    sum_x = tl.zeros([block], tl.float32)
    for number in range(0, taps_x):
        sum_x += _weight(first_x + number, centre_x, support_x, width)
    sum_y = tl.zeros([block], tl.float32)
    for number in range(0, taps_y):
        sum_y += _weight(first_y + number, centre_y, support_y, height)
    for channel in tl.static_range(channels):
        plane = flat + start + (height * width * channel).to(tl.int64)
        total = tl.zeros([block], tl.float32)
        for down in range(0, taps_y):
            y = first_y + down
            by_row = _weight(y, centre_y, support_y, height)
            line = tl.zeros([block], tl.float32)
            for right in range(0, taps_x):
                x = first_x + right
                by_column = _weight(x, centre_x, support_x, width)
                read = inside & (by_row > 0.0) & (by_column > 0.0)
                line += by_column * tl.load(plane + y * width + x, mask=read, other=0).to(tl.float32)
            total += by_row * tl.floor(line / sum_x + 0.5)
        value = tl.minimum(tl.maximum(tl.floor(total / sum_y + 0.5), 0.0), 255.0)
        place = (image * channels + channel) * (new_height * new_width) + at
        tl.store(found + place, value.to(tl.int32).to(tl.uint8), mask=inside)


def crop_boxes(rows: Rows, indices: Tensor, crops: Crops) -> Tensor:
    """The boxes of `crops` out of the images at these indices, uint8 [n, channels, *crops.size]."""
    height, width = crops.size
    found = torch.empty(len(indices), rows.channels, height, width, dtype=torch.uint8, device=rows.flat.device)
    if not len(indices):
        return found
    with torch.cuda.device_of(found):
        _crop[(len(indices), triton.cdiv(height * width, BLOCK))](
            rows.flat,
            rows.places.contiguous(),
            rows.heights.contiguous(),
            rows.widths.contiguous(),
            indices.contiguous(),
            crops.boxes.contiguous(),
            crops.mirrored.contiguous().view(torch.uint8),
            found,
            rows.channels,
            height,
            width,
            BLOCK,
        )
    return found


@triton.jit(do_not_specialize=["pad"])
def _shift(
    pixels,
    offsets,
    mirrored,
    brightness,
    scale,
    shift,
    found,
    pad,
    repeats: tl.constexpr,
    channels: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    """Some new pixels of one image, all channels, which lie side by side; `repeats`: of a grey image."""
    image = tl.program_id(0).to(tl.int64)  # a batch may have more values than 32 bits can count
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < height * width
    column = at % width
    column = tl.where(tl.load(mirrored + image) != 0, width - 1 - column, column)
    row = at // width + tl.load(offsets + 2 * image).to(tl.int32) - pad
    column += tl.load(offsets + 2 * image + 1).to(tl.int32) - pad
    known = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    factor = tl.load(brightness + image)
    for channel in tl.static_range(channels):
        plane = image if repeats else image * channels + channel
        value = tl.load(pixels + plane * (height * width) + row * width + column, mask=known, other=0).to(tl.float32)
        value = tl.minimum(value * factor, 255.0) * tl.load(scale + channel) + tl.load(shift + channel)
        tl.store(found + (image * (height * width) + at) * channels + channel, value, mask=inside)


def shift_and_normalise(
    pixels: Tensor, choices: tuple[Tensor, Tensor, Tensor], normalising: tuple[Tensor, Tensor], pad: int
) -> Tensor:
    """Images uint8 [n, 1 or C, H, W], shifted by up to `pad`, mirrored, made brighter, normalised: float32 [n, C, …].

    `choices` are those of each image: the offsets, whether it is mirrored, and the factor of brightness. `normalising`
    is scale and shift of each channel. The result lies channels last.
    """
    scale, shift = normalising
    (count, given, height, width), channels = pixels.shape, scale.numel()
    found = torch.empty(count, height, width, channels, dtype=torch.float32, device=pixels.device).permute(0, 3, 1, 2)
    offsets, mirrored, brightness = (each.contiguous() for each in choices)
    images = pixels.contiguous(), offsets, mirrored.view(torch.uint8), brightness
    with torch.cuda.device_of(found):
        _shift[(count, triton.cdiv(height * width, BLOCK))](
            *images, scale, shift, found, pad, given != channels, channels, height, width, BLOCK
        )
    return found


def try_out(device: torch.device) -> None:
    """Compile and launch the kernel on one pixel; raises where this machine cannot, say for lack of a C compiler."""
    one = torch.ones(1, dtype=torch.int64, device=device)
    rows = Rows(torch.zeros(1, dtype=torch.uint8, device=device), one * 0, one, one, 1, 1)
    box = torch.tensor([[0.0, 0.0, 1.0, 1.0]], dtype=torch.float32, device=device)
    crop_boxes(rows, one * 0, Crops(box, torch.zeros(1, dtype=torch.bool, device=device), (1, 1)))
