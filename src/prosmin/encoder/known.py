"""The images that an encoder knows: those of its reference, or training images that it carries."""

import torch
from torch import Tensor

from prosmin.encoder.background import Background
from prosmin.encoder.detectors import KnnDistance
from prosmin.encoder.file import tensors_hash
from prosmin.encoder.neighbourhood import AROUND, BELONGS, FEW, NEIGHBOURS, ROUNDS, Neighbourhood
from prosmin.encoder.neighbours import first_of_copies, first_of_each
from prosmin.encoder.space import Space
from prosmin.errors import ProsminError

LEAST_REFERENCE = 10  # images: fewer cannot describe what belongs

UNCERTAINTY = (
    f"disagreement of the nearest {', '.join(str(count) for count in AROUND)} images, smoothed {ROUNDS} times, plus "
    f"1 + {FEW} / M times the mean distance to the nearest {NEIGHBOURS}; above {BELONGS:g} of these by distance alone"
)
"""What `Neighbourhood.uncertainty` is, which this text follows: files of another uncertainty are recognised by it."""


class Known:
    """The background of an encoder with its training images, and the reference if one was fitted."""

    def __init__(self, background: Background | None, reference: Neighbourhood | KnnDistance | None) -> None:
        """A reference of an early version is a KnnDistance: it gives an OOD score, and no uncertainty."""
        self.background = background
        self.reference = reference
        self._training: Neighbourhood | None = None  # the background's sample

    @property
    def images(self) -> Neighbourhood | None:
        """The images that an image is compared with for its uncertainty; None if there are none."""
        if isinstance(self.reference, Neighbourhood):
            return self.reference
        background = self.background
        if self._training is None and background is not None and background.sample is not None:
            sample = background.sample[first_of_copies(background.sample).unique()]
            if len(sample) >= LEAST_REFERENCE:
                rows = torch.arange(len(sample), device=sample.device)
                self._training = Neighbourhood(features=sample, space=background.space, groups=rows)
        return self._training

    @property
    def scores(self) -> dict[str, str]:
        """What `uncertainty` and `ood_score` are, as far as there are images for them."""
        found = {}
        if self.images is not None:
            whose = "reference" if self.images is self.reference else "training"
            found["uncertainty"] = f"disagreement of the nearest {whose} images and distance to them; highest far away"
        if isinstance(self.reference, Neighbourhood):
            found["ood_score"] = f"mean distance to the {self.reference.k} nearest reference images, half-whitened"
        elif self.reference is not None:
            found["ood_score"] = f"distance to the nearest reference image number {self.reference.k}, not whitened"
        return found

    @property
    def definition(self) -> str | None:
        """What the uncertainty is, and a hash of the images: where both are the same, values can be compared."""
        if (images := self.images) is None:
            return None
        tensors = {"features": images.features, "mean": images.space.mean, "matrix": images.space.matrix}
        found = tensors_hash({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
        return f"{UNCERTAINTY}; {len(images.features)} images, {found}"

    def fit(self, features: Tensor, contents: Tensor, *, space: Space) -> None:
        """Make images with these features (M, D) and hashes of pixels (M,) the reference."""
        kept = first_of_each(contents)  # with copies beside it every image would seem to have close neighbours
        if len(kept) < LEAST_REFERENCE:
            raise ProsminError(
                f"The reference has {len(kept)} different readable images; allowed: {LEAST_REFERENCE} or more. "
                "Give fit_reference more images that belong."
            )
        self.reference = Neighbourhood(features=features[kept], space=space, groups=contents[kept])

    def ood_score(self, features: Tensor, contents: Tensor) -> Tensor:
        """OOD scores by the reference: (N, D), (N,) -> (N,)."""
        assert self.reference is not None
        self.reference = self.reference.to(features.device)
        return self.reference(features, contents)

    def uncertainty(self, features: Tensor, contents: Tensor | None = None) -> Tensor:
        """Uncertainties by the known images: (N, D), (N,) -> (N,).

        Without hashes of their pixels, known images are recognised by their features; training images always are.
        """
        images = self._images_on(features.device)
        if images.groups is not None and (contents is None or images is self._training):
            contents = images.recognise(features)
        return images.uncertainty(features, contents)

    def _images_on(self, device: torch.device) -> Neighbourhood:
        """`images` on this device, and kept there with the statistics that they compute once."""
        assert self.images is not None
        images = self.images.to(device)
        if self.images is self.reference:
            self.reference = images
        else:
            self._training = images
        return images
