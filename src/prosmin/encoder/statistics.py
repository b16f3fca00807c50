"""The running statistics of an encoder's BatchNorms and whitenings."""

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from prosmin.data.image_sets import Pictures
from prosmin.data.stream import picture_batches
from prosmin.encoder.encoder import Encoder
from prosmin.models.whitening import BatchWhitening

_BATCH = 256  # fixed: the statistics must not depend on the machine


def set_statistics(encoder: Encoder, pictures: Pictures) -> Encoder:
    """Compute the running statistics of every BatchNorm and BatchWhitening from these images; the weights stay.

    A new BatchNorm has mean 0 and variance 1. Its statistics alone, without any learning, are worth many points of kNN,
    which a comparison with an initialised ResNet would count as learned.
    """
    least = 2  # images of a last batch that counts: one has no variance, too few have a singular covariance
    for module in encoder.method.modules():  # the plain mean over all batches
        if isinstance(module, _BatchNorm):
            module.reset_running_stats()
            module.momentum = None
        elif isinstance(module, BatchWhitening):
            module.averages.updates.zero_()  # the first batch replaces what was there
            module.averages.momentum = 1.0
            least = max(least, len(module.averages.mean))
    last = len(pictures) % _BATCH
    if last < least and len(pictures) > _BATCH:
        pictures = pictures.subset(torch.arange(len(pictures) - last))
    encoder.method.train()
    for batch in picture_batches(pictures, size=_BATCH, device=encoder.device):
        encoder.summarise(batch)  # for its effect on the statistics
    encoder.method.eval()
    return encoder


def has_batchnorm(encoder: Encoder) -> bool:
    """Whether the features pass through a BatchNorm."""
    backbone = encoder.method.get_submodule("online.backbone")
    return any(isinstance(module, _BatchNorm) for module in backbone.modules())
