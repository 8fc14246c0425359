"""One short file per method: how the network grows, its stages, its named terms, its default action."""

from poise.methods.aanets import AANets
from poise.methods.base import (
    METHODS,
    MODEL,
    PREVIOUS,
    Arrivals,
    Correction,
    Finished,
    Growth,
    Learned,
    Method,
    Stage,
    ceiling,
    is_registered,
    make_method,
    register,
)
from poise.methods.baselines import Finetune, Joint, Replay
from poise.methods.der import DER
from poise.methods.foster import FOSTER
from poise.methods.frozen import FrozenMethod
from poise.methods.icarl import ICaRL
from poise.methods.lucir import Lucir
from poise.methods.lwf import LwF
from poise.methods.podnet import PODNet
from poise.methods.ranpac import RanPAC
from poise.methods.simplecil import SimpleCIL
from poise.methods.slca import SLCA

__all__ = [
    "DER",
    "FOSTER",
    "METHODS",
    "MODEL",
    "PREVIOUS",
    "SLCA",
    "AANets",
    "Arrivals",
    "Correction",
    "Finetune",
    "Finished",
    "FrozenMethod",
    "Growth",
    "ICaRL",
    "Joint",
    "Learned",
    "Lucir",
    "LwF",
    "Method",
    "PODNet",
    "RanPAC",
    "Replay",
    "SimpleCIL",
    "Stage",
    "ceiling",
    "is_registered",
    "make_method",
    "register",
]
