"""Features as points of a plane, so that a person can see which pictures lie together."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

DIRECTIONS = 30  # principal directions that t-SNE starts from: of more it becomes slow, not different
PERPLEXITY = 30.0
STEPS = 750  # a quarter less time than scikit-learn's thousand; the map keeps as many neighbours
FEWEST = 12  # points below which t-SNE has nothing to arrange


def planar_map(features: Tensor, *, seed: int) -> np.ndarray:
    """Features (N, D) -> points (N, 2) in the unit square: t-SNE of the normalised features, started from their PCA.

    About 3 s for 1,500 points on one core. Fewer than a dozen points, and features that are all alike, stay as the
    PCA has them.
    """
    normal = F.normalize(features.double(), dim=1)
    centred = normal - normal.mean(0)
    left, sizes, _ = torch.linalg.svd(centred, full_matrices=False)
    main = F.pad(left * sizes, (0, max(0, 2 - len(sizes))))[:, :DIRECTIONS].numpy()  # (N, up to DIRECTIONS)
    spread = float(main[:, 0].std())
    if len(main) < FEWEST or spread < 1e-6:
        return _in_unit_square(main[:, :2])
    from sklearn.manifold import TSNE  # a second to import, and nothing else of an evaluation needs it

    tsne = TSNE(
        n_components=2,
        perplexity=min(PERPLEXITY, (len(main) - 1) / 3),
        init=(1e-4 / spread * main[:, :2]).astype(np.float32),
        max_iter=STEPS,
        random_state=seed,
    )
    return _in_unit_square(tsne.fit_transform(main.astype(np.float32)))


def kept_neighbours(features: Tensor, points: np.ndarray, *, k: int) -> float:
    """The share of the k nearest pictures by features that are among the k nearest points of a map too."""
    normal = F.normalize(features.double(), dim=1)
    plane = torch.from_numpy(points).double()
    nearest = []
    for distances in (-normal @ normal.T, torch.cdist(plane, plane)):
        distances.fill_diagonal_(torch.inf)
        nearest.append(distances.topk(k, largest=False).indices)
    return (nearest[0][:, :, None] == nearest[1][:, None, :]).any(2).double().mean().item()


def _in_unit_square(points: np.ndarray) -> np.ndarray:
    """Moved and scaled, the same in both directions; points that are all one end in the middle."""
    low, high = points.min(0), points.max(0)
    span = float((high - low).max())
    return ((points - (low + high) / 2) / span + 0.5 if span > 0 else np.full_like(points, 0.5)).astype(np.float32)
