"""CIFAR-10 and CIFAR-100 as they were published: their folders, files and md5 sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Release:
    """The published files of one data set: where they are, their md5 sums and what their entries are called."""

    name: str
    title: str
    folder: str
    train: Mapping[str, str]
    test: Mapping[str, str]
    meta: Mapping[str, str]
    labels_key: str
    names_key: str

    def found_in(self, folder: Path) -> Path | None:
        """The standard folder: `folder` itself, or below it."""
        candidates = (folder, folder / self.folder, folder / self.name, folder / self.name / self.folder)
        return next((candidate for candidate in candidates if self._is_at(candidate)), None)

    def _is_at(self, folder: Path) -> bool:
        # A folder that lacks some of its files is found too: reading it says which file is missing.
        return any((folder / file).is_file() for file in self.meta) or (folder.name == self.folder and folder.is_dir())


RELEASES: Final[dict[str, Release]] = {
    release.name: release
    for release in (
        Release(
            name="cifar10",
            title="CIFAR-10",
            folder="cifar-10-batches-py",
            train={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            },
            test={"test_batch": "40351d587109b95175f43aff81a1287e"},
            meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
            labels_key="labels",
            names_key="label_names",
        ),
        Release(
            name="cifar100",
            title="CIFAR-100",
            folder="cifar-100-python",
            train={"train": "16019d7e3df5f24257cddd939b257f8d"},
            test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
            meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
            labels_key="fine_labels",
            names_key="fine_label_names",
        ),
    )
}
