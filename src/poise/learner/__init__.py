"""The learner: one phase per `partial_fit`, then `predict`."""

from poise.learner.learner import Images, Label, Labels, Learner, Settings

__all__ = ["Images", "Label", "Labels", "Learner", "Settings"]
