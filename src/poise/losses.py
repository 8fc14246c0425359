"""Every named loss term: a pure function of tensors, averaged over the batch.

All of them are finite, with finite gradients, when student equals teacher: a term of weight 0 must not
poison the sum. Nothing here depends on the values of tensors (no host synchronisation).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """L = −log softmax(z)_y over all classes seen so far."""
    return F.cross_entropy(logits, labels)


def separated_cross_entropy(logits: Tensor, labels: Tensor, old: int) -> Tensor:
    """Cross-entropy in which images of new classes are told from new classes alone, images of old ones from all."""
    fresh = (labels >= old)[:, None] & (torch.arange(logits.shape[1], device=logits.device) < old)
    return F.cross_entropy(logits.masked_fill(fresh, torch.finfo(logits.dtype).min), labels)


def normalised_cross_entropy(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of z / (τ |z|): only the direction of the logits counts."""
    return F.cross_entropy(F.normalize(logits) / temperature, labels)


def logit_kd(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Distillation of logits: L = T²/4 · KL(softmax(z_old / T) ‖ softmax(z_new / T)).

    `student` holds the logits of the old classes only. At T = 2 the factor is 1, as in LUCIR's
    repository; the paper's η_k(v) = v_k^(1/τ) / Σ v_j^(1/τ), applied to probabilities, is the same.
    """
    divergence = F.kl_div(
        F.log_softmax(student / temperature, dim=1),
        F.log_softmax(teacher / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    )
    return divergence * (temperature**2 / 4)


def class_weights(counts: Tensor, beta: float) -> Tensor:
    """v_c = (1 − β) / (1 − β^k_c) of classes with k_c ≥ 1 images, scaled to a mean of 1 (Cui et al. 2019).

    All are equal at β = 0; at β = 1 they are in proportion to 1 / k_c.

    >>> weights = class_weights(torch.tensor([20] * 50 + [500] * 10), 0.97)
    >>> round(weights[0].item(), 3), round(weights[-1].item(), 3)
    (1.1, 0.502)
    """
    effective = counts.double() if beta == 1 else (1 - beta ** counts.double()) / (1 - beta)
    weights = 1 / effective
    return (weights / weights.mean()).float()


def balanced_kd(student: Tensor, teacher: Tensor, weights: Tensor, temperature: float = 2.0) -> Tensor:
    """FOSTER's balanced distillation: L = −Σ_c q_c log softmax(z / T)_c.

    q = softmax(z_teacher / T) · v, of sum 1 again, where v are the weights of the classes.
    """
    targets = F.softmax(teacher / temperature, dim=1) * weights
    targets = targets / targets.sum(dim=1, keepdim=True)
    return -(targets * F.log_softmax(student / temperature, dim=1)).sum(dim=1).mean()


def feature_kd(student: Tensor, teacher: Tensor) -> Tensor:
    """Distillation of features: L = 1 − cos(f_new, f_old)."""
    return (1 - F.cosine_similarity(student, teacher)).mean()


def margin_ranking(
    scores: Tensor, labels: Tensor, old: int, margin: float = 0.5, hardest: int = 2, *, batch: Tensor | None = None
) -> Tensor:
    """LUCIR's inter-class separation for images of old classes.

    L = mean over old images of max(0, m − cos_y + cos_k), averaged over the K new classes k with the
    highest scores. A batch without old images gives 0. Where these images are a part of a batch, `batch` are the labels
    of all of it: then the mean over parts, weighed by their images, is the L of the whole batch.
    """
    new = scores.shape[1] - old
    if new == 0:
        return scores.sum() * 0
    is_old = (labels < old).to(scores.dtype)
    truth = scores.gather(1, labels[:, None])
    rivals = scores[:, old:].topk(min(hardest, new), dim=1).values
    hinge = torch.relu(margin - truth + rivals).mean(dim=1)
    count = is_old.sum().clamp(min=1)
    if batch is not None:
        count = (batch < old).to(scores.dtype).sum().clamp(min=1) * (len(labels) / len(batch))
    return (hinge * is_old).sum() / count


def nca(logits: Tensor, labels: Tensor) -> Tensor:
    """PODNet's classification of similarities, as its released code effectively computes it.

    With logits z, s = z − max z: L = −s_y + log(1 + Σ_{j≠y} e^{s_j}). That code intends to subtract a margin from the
    similarity of the true class but subtracts it from all of them, which changes nothing.
    """
    truth = labels[:, None]
    shifted = logits - logits.max(dim=1, keepdim=True).values
    return (shifted.scatter(1, truth, 0.0).logsumexp(dim=1) - shifted.gather(1, truth)[:, 0]).mean()


def pod_spatial(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """Pooled outputs distillation, on maps [B, C, H, W] of several levels: the mean over levels of |p_new − p_old|.

    p are the sums of the squared map over its width and over its height, side by side [B, C · (H + W)], of unit length.
    """
    levels = zip(student, teacher, strict=True)
    return torch.stack([torch.linalg.vector_norm(_pool(new) - _pool(old), dim=1).mean() for new, old in levels]).mean()


def _pool(maps: Tensor) -> Tensor:
    energy = maps.float().square()
    return F.normalize(torch.cat([energy.sum(dim=3).flatten(1), energy.sum(dim=2).flatten(1)], dim=1))


def sigmoid_new(logits: Tensor, labels: Tensor, old: int) -> Tensor:
    """ICaRL's original classification: binary cross-entropy of the new outputs against one-hot labels.

    Summed over new outputs and divided by all outputs, so that with `sigmoid_kd` it is the mean over all.
    """
    targets = F.one_hot(labels, logits.shape[1])[:, old:].to(logits.dtype)
    return F.binary_cross_entropy_with_logits(logits[:, old:], targets, reduction="sum") / logits.numel()


def sigmoid_kd(logits: Tensor, teacher: Tensor, old: int) -> Tensor:
    """ICaRL's original distillation: binary cross-entropy of the old outputs against the old model's."""
    targets = torch.sigmoid(teacher)
    return F.binary_cross_entropy_with_logits(logits[:, :old], targets, reduction="sum") / logits.numel()
