"""The protocols by name: each takes a Context and returns a Result. A new one is one file and one line here."""

from collections.abc import Callable

from prosmin.evaluation.context import Context
from prosmin.evaluation.protocols import knn, linear, ood, uncertainty
from prosmin.evaluation.result import Result

PROTOCOLS: dict[str, Callable[[Context], Result]] = {
    "knn": knn.run,
    "linear": linear.run,
    "ood": ood.run,
    "uncertainty": uncertainty.run,
}
