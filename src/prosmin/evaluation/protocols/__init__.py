"""The protocols, in the order in which they run and are shown. docs/extending.md explains how to add one."""

from prosmin.evaluation.protocol import Protocol
from prosmin.evaluation.protocols import (
    corruption,
    knn,
    linear,
    linear_paper,
    lowshot,
    ood,
    pictures,
    semi,
    transfer,
    uncertainty,
)

_MODULES = (knn, linear, linear_paper, lowshot, semi, transfer, ood, uncertainty, corruption, pictures)
PROTOCOLS: dict[str, Protocol] = {module.PROTOCOL.name: module.PROTOCOL for module in _MODULES}

SUITES = ("paper",)


def protocols_of(suite: str | None) -> list[str]:
    """The protocols of a suite. None: what runs by default, minutes on a CPU for a small set."""
    return [name for name, protocol in PROTOCOLS.items() if (protocol.paper if suite else protocol.default)]
