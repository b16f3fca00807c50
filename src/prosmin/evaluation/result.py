"""What a protocol returns; it becomes RUN/results/PROTOCOL.json, its arrays PROTOCOL.npz."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Result:
    """Metrics of the trained encoder, the same of its baselines, the settings that made them, what figures need."""

    metrics: dict[str, float]
    settings: dict[str, Any]
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    sets: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
