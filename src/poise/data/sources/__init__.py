"""Data sources: where images come from."""

from __future__ import annotations

from poise.data.sources.arrays import ArraySource
from poise.data.sources.base import Source, digest, suitable_augmentation, suitable_net
from poise.data.sources.catalog import Entry, listing, open_source, register
from poise.data.sources.cifar import CifarSource
from poise.data.sources.digits import DigitsSource
from poise.data.sources.folder import LEAST_SIZE, FolderSource, image_files, labelled_files

__all__ = [
    "LEAST_SIZE",
    "ArraySource",
    "CifarSource",
    "DigitsSource",
    "Entry",
    "FolderSource",
    "Source",
    "digest",
    "image_files",
    "labelled_files",
    "listing",
    "open_source",
    "register",
    "suitable_augmentation",
    "suitable_net",
]
