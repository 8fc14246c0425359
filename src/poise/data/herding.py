"""Which images stand for a class: herding (Welling 2009; Rebuffi et al. 2017), and the centres of its clusters.

Herding. Per class, with unit features d_j and their mean μ (not renormalised), start at w = μ and repeat: take
j = argmax ⟨w, d_j⟩, then w ← w + μ − d_j. An image taken before is skipped but still moves w. It ends
when enough distinct images were taken, or after 1,000 tries. Of equally good images the first is taken.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

TRIES = 1000
STARTS = 10  # of k-means, the best of which is kept
_CELLS = 2**25  # padded feature values held at once (256 MB in float64)


def herd(features: Tensor, labels: Tensor, count: int) -> dict[int, Tensor]:
    """For every label, the indices of its (up to) `count` images in the order of herding.

    All classes advance together. Should 1,000 tries not reach `count` distinct images (many equal ones),
    the images nearest to the mean fill the rest, so that the memory is always as large as it may be.
    """
    classes = torch.unique(labels).tolist()
    longest = int(torch.bincount(labels).max()) if len(labels) else 1
    together = max(1, _CELLS // (longest * features.shape[1]))
    ranks: dict[int, Tensor] = {}
    for start in range(0, len(classes), together):
        ranks.update(_herd_together(features, labels, classes[start : start + together], count))
    return ranks


def _herd_together(features: Tensor, labels: Tensor, classes: list[int], count: int) -> dict[int, Tensor]:
    members = [torch.nonzero(labels == label).flatten() for label in classes]
    sizes = torch.tensor([len(m) for m in members], device=features.device)
    padded = torch.nn.utils.rnn.pad_sequence(members, batch_first=True)
    real = torch.arange(padded.shape[1], device=features.device) < sizes[:, None]
    points = torch.nn.functional.normalize(features.double())[padded] * real[..., None]
    means = points.sum(dim=1) / sizes[:, None]

    want = sizes.clamp(max=count)
    length = int(want.max())
    order = torch.zeros(len(classes), length, dtype=torch.long, device=features.device)
    chosen = ~real  # padding is treated as taken
    taken = torch.zeros_like(want)
    pull = means.clone()
    for attempt in range(TRIES):
        if attempt >= length and bool((taken >= want).all()):
            break
        scores = _closeness(points, pull).masked_fill(~real, -torch.inf)
        pick = scores.argmax(dim=1, keepdim=True)
        fresh = ~chosen.gather(1, pick) & (taken < want)[:, None]
        slot = taken.clamp(max=length - 1)[:, None]
        order.scatter_(1, slot, torch.where(fresh, pick, order.gather(1, slot)))
        chosen.scatter_(1, pick, chosen.gather(1, pick) | fresh)
        taken += fresh[:, 0]
        pull += means - points.gather(1, pick[..., None].expand(-1, -1, points.shape[2]))[:, 0]

    rest = _closeness(points, means).masked_fill(chosen, -torch.inf).argsort(dim=1, descending=True, stable=True)
    ranks = {}
    for row, (label, have, wanted) in enumerate(zip(classes, taken.tolist(), want.tolist(), strict=True)):
        picks = torch.cat([order[row, :have], rest[row, : wanted - have]])
        ranks[label] = members[row][picks]
    return ranks


def _closeness(points: Tensor, target: Tensor) -> Tensor:
    """⟨target, d_j⟩, rounded: equal images, and the two images of a class of two, tie on every machine."""
    return torch.einsum("cnd,cd->cn", points, target).round(decimals=9)


# Clusters -------------------------------------------------------------------------------------------------------------


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
        with threadpool_limits(limits=1), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of points so close together that two centres coincide
            centres = KMeans(count, n_init=STARTS, random_state=seed).fit(values).cluster_centers_
    return torch.from_numpy(np.resize(centres, (count, values.shape[1]))).to(points)
