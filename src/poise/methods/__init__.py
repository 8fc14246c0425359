"""One short file per method: how the network grows, its stages, its named terms, its default action."""

from poise.methods.aanets import AANets
from poise.methods.base import (
    METHODS,
    MODEL,
    PREVIOUS,
    Growth,
    GrowthInputs,
    Method,
    Select,
    Stage,
    TrainedPhase,
    draw_evenly,
    herd_evenly,
    is_registered,
    make_method,
    register,
)
from poise.methods.der import DER, MEMO
from poise.methods.foster import FOSTER
from poise.methods.frozen import FrozenMethod, RanPAC, RidgeHead, SimpleCIL
from poise.methods.lucir import Lucir
from poise.methods.podnet import PODNet
from poise.methods.replay import Finetune, ICaRL, Joint, LwF, Replay
from poise.methods.slca import SLCA, GaussianHead

__all__ = [
    "DER",
    "FOSTER",
    "MEMO",
    "METHODS",
    "MODEL",
    "PREVIOUS",
    "SLCA",
    "AANets",
    "Finetune",
    "FrozenMethod",
    "GaussianHead",
    "Growth",
    "GrowthInputs",
    "ICaRL",
    "Joint",
    "Lucir",
    "LwF",
    "Method",
    "PODNet",
    "RanPAC",
    "Replay",
    "RidgeHead",
    "Select",
    "SimpleCIL",
    "Stage",
    "TrainedPhase",
    "draw_evenly",
    "herd_evenly",
    "is_registered",
    "make_method",
    "register",
]
