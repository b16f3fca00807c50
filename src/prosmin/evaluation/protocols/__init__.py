"""The protocols by name: each takes a Context and returns a Result. docs/extending.md tells how to add one."""

from collections.abc import Callable

from prosmin.evaluation.context import Context
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
from prosmin.evaluation.results import Result

PROTOCOLS: dict[str, Callable[[Context], Result]] = {
    "knn": knn.run,
    "linear": linear.run,
    "linear-paper": linear_paper.run,
    "lowshot": lowshot.run,
    "semi": semi.run,
    "transfer": transfer.run,
    "ood": ood.run,
    "uncertainty": uncertainty.run,
    "corruption": corruption.run,
    "pictures": pictures.run,
}
