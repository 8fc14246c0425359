"""What arrives: image sets, sources, streams, class orders, augmentation, the feed and the memory."""

from poise.data.augment import Augmentation, Draws, Preprocessing, mirror
from poise.data.clusters import cluster_centres
from poise.data.feed import Feed, batch_bounds, fits
from poise.data.herding import herd
from poise.data.images import ImageSet
from poise.data.inputs import to_pixels
from poise.data.memory import Budget, Memory, allocated, draw_reserve
from poise.data.orders import class_order
from poise.data.streams import Stream, make_stream

__all__ = [
    "Augmentation",
    "Budget",
    "Draws",
    "Feed",
    "ImageSet",
    "Memory",
    "Preprocessing",
    "Stream",
    "allocated",
    "batch_bounds",
    "class_order",
    "cluster_centres",
    "draw_reserve",
    "fits",
    "herd",
    "make_stream",
    "mirror",
    "to_pixels",
]
