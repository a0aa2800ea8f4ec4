"""Networks: net(features, t, label=None) -> parameters of the output distribution.

They know nothing of flows or losses. Images are (B, C, H, W) and sequences (B, L); a last axis
holds the K classes of the features, or the P parameters per variable of the output, if there is
more than one. The defaults are the networks of the paper's experiments: `UNet` (MNIST), `VDMUNet`
(CIFAR-10), `Transformer` (text8). `MLP` is for vectors, `MixedMLP` for dicts of any tensors.
"""

from __future__ import annotations

from bfn.nn.mlp import MLP, MixedMLP
from bfn.nn.transformer import Transformer
from bfn.nn.unet import UNet, VDMUNet

__all__ = ["MLP", "MixedMLP", "Transformer", "UNet", "VDMUNet"]
