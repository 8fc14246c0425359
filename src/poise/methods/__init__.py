"""One short file per method: how the network grows, its stages, its named terms, its default action."""

from poise.methods.aanets import AANets
from poise.methods.base import (
    METHODS,
    MODEL,
    PREVIOUS,
    Arrivals,
    Finished,
    Growth,
    Method,
    Stage,
    make_method,
    register,
)
from poise.methods.icarl import ICaRL
from poise.methods.lucir import Lucir
from poise.methods.lwf import LwF
from poise.methods.podnet import PODNet
from poise.methods.yardsticks import Finetune, Joint, Replay

__all__ = [
    "METHODS",
    "MODEL",
    "PREVIOUS",
    "AANets",
    "Arrivals",
    "Finetune",
    "Finished",
    "Growth",
    "ICaRL",
    "Joint",
    "Lucir",
    "LwF",
    "Method",
    "PODNet",
    "Replay",
    "Stage",
    "make_method",
    "register",
]
