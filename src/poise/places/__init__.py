"""Where data sets lie: folders, published files, and what the user registered. Names only: no image is opened here.

There is no torch in this room, so that `poise data` answers at once.
"""

from poise.places.collections import COLLECTIONS, Collection
from poise.places.folders import Files, Layout, image_files, labelled_files, list_files, scan
from poise.places.known import (
    EMBEDDED,
    KnownSource,
    cifar_folder,
    collection_place,
    explain_collection,
    explain_getting,
    explain_shadowed,
    explain_unknown,
    file_name,
    forget,
    is_name,
    is_there,
    listing,
    named_place,
    own_name,
    remember,
    shadowed_place,
    still_found,
)
from poise.places.packfile import ENDING, is_pack
from poise.places.releases import RELEASES, Release

__all__ = [
    "COLLECTIONS",
    "EMBEDDED",
    "ENDING",
    "RELEASES",
    "Collection",
    "Files",
    "KnownSource",
    "Layout",
    "Release",
    "cifar_folder",
    "collection_place",
    "explain_collection",
    "explain_getting",
    "explain_shadowed",
    "explain_unknown",
    "file_name",
    "forget",
    "image_files",
    "is_name",
    "is_pack",
    "is_there",
    "labelled_files",
    "list_files",
    "listing",
    "named_place",
    "own_name",
    "remember",
    "scan",
    "shadowed_place",
    "still_found",
]
