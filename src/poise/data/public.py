"""The names of `poise.data`, which loads them when one is asked for: behind most of them is torch."""

from poise.data.augment import (
    STRONGER,
    Augmentation,
    Draws,
    FeatureViews,
    Preprocessing,
    suitable_augmentation,
)
from poise.data.budget import Budget, Stored, on_arrival, per_class
from poise.data.crops import Crops, usable_kernels
from poise.data.decode import Decoder
from poise.data.feed import Feed, batch_bounds, fits, free_on
from poise.data.herding import cluster_centres, herd, load_clustering
from poise.data.images import ImageSet
from poise.data.inputs import Images, open_images, to_pixels
from poise.data.memory import Memory, draw_reserve
from poise.data.sources.base import FEW_IMAGES, suitable_net
from poise.data.stores import DenseStore, FlatStore, PixelStore, as_store, chunks, in_a_row, resident
from poise.data.streams import Stream, class_order, class_sizes, keep_some, make_stream
from poise.settings import ALL_IMAGES

__all__ = [
    "ALL_IMAGES",
    "FEW_IMAGES",
    "STRONGER",
    "Augmentation",
    "Budget",
    "Crops",
    "Decoder",
    "DenseStore",
    "Draws",
    "FeatureViews",
    "Feed",
    "FlatStore",
    "ImageSet",
    "Images",
    "Memory",
    "PixelStore",
    "Preprocessing",
    "Stored",
    "Stream",
    "as_store",
    "batch_bounds",
    "chunks",
    "class_order",
    "class_sizes",
    "cluster_centres",
    "draw_reserve",
    "fits",
    "free_on",
    "herd",
    "in_a_row",
    "keep_some",
    "load_clustering",
    "make_stream",
    "on_arrival",
    "open_images",
    "per_class",
    "resident",
    "suitable_augmentation",
    "suitable_net",
    "to_pixels",
    "usable_kernels",
]
