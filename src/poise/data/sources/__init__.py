"""Data sources: where images come from."""

from __future__ import annotations

from poise.data.sources.arrays import ArraySource
from poise.data.sources.base import Source, digest
from poise.data.sources.catalog import add_source, open_source
from poise.data.sources.cifar import CifarSource
from poise.data.sources.digits import DigitsSource
from poise.data.sources.folder import FolderSource
from poise.data.sources.pack import PackSource
from poise.places import KnownSource, image_files, labelled_files, listing

__all__ = [
    "ArraySource",
    "CifarSource",
    "DigitsSource",
    "FolderSource",
    "KnownSource",
    "PackSource",
    "Source",
    "add_source",
    "digest",
    "image_files",
    "labelled_files",
    "listing",
    "open_source",
]
