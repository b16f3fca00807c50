"""The running statistics of an encoder's BatchNorms."""

from torch.nn.modules.batchnorm import _BatchNorm

from prosmin.data.image_sets import Pictures
from prosmin.data.stream import picture_batches
from prosmin.encoder.encoder import Encoder

_BATCH = 256  # fixed: the statistics must not depend on the machine


def set_statistics(encoder: Encoder, pictures: Pictures) -> Encoder:
    """Compute the running statistics of every BatchNorm from these images; the weights stay.

    A new BatchNorm has mean 0 and variance 1. Its statistics alone, without any learning, are worth many points of kNN,
    which a comparison with an initialised ResNet would count as learned.
    """
    norms = [module for module in encoder.method.modules() if isinstance(module, _BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
    encoder.method.train()
    for batch in picture_batches(pictures, size=_BATCH, device=encoder.device):
        encoder.summarise(batch)  # for its effect on the statistics
    encoder.method.eval()
    return encoder


def has_batchnorm(encoder: Encoder) -> bool:
    """Whether the features pass through a BatchNorm."""
    backbone = encoder.method.get_submodule("online.backbone")
    return any(isinstance(module, _BatchNorm) for module in backbone.modules())
