"""Clusters: where the images of a class gather, found by k-means."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from poise.data.decode import without_warnings

STARTS = 10  # random starts, the best of which is kept


def load_clustering() -> None:
    """Import what finds clusters, which takes seconds; before a phase begins, not in its middle.

    Some versions of it draw from Python's global generator while they are imported.
    """
    import sklearn.cluster  # noqa: F401


def cluster_centres(points: Tensor, count: int, seed: int) -> Tensor:
    """The centres [count, d] of `count` clusters of the points [n, d], on one thread: the same on every machine.

    With at most `count` distinct points, each is a centre; where there are fewer, they repeat.
    """
    from sklearn.cluster import KMeans  # as above: not with poise itself
    from threadpoolctl import threadpool_limits

    values = points.detach().double().cpu().numpy()
    centres = np.unique(values, axis=0)
    if len(centres) > count:
        with threadpool_limits(limits=1), without_warnings():  # of points so close together that two centres coincide
            centres = KMeans(count, n_init=STARTS, random_state=seed).fit(values).cluster_centers_
    return torch.from_numpy(np.resize(centres, (count, values.shape[1]))).to(points)
