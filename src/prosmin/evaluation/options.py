"""The options of protocols: one field per option of `prosmin evaluate`.

A field names the protocols that read it. A result is reused only if the fields that its protocol reads have the
same values.
"""

import dataclasses
import shlex
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prosmin.config.values import convert
from prosmin.data.corruptions.parameters import (
    AUTO,
    COMMON,
    GENERATORS,
    SEVERITIES,
    check_generator,
    check_names,
    check_parameters,
    check_severities,
)
from prosmin.errors import UsageError

DRAWS = 3
BASELINES = ("all", "none")
PROTOCOLS_HELP = (
    "of knn, linear, linear-paper, lowshot, semi, transfer, ood, uncertainty, corruption, pictures (default: the quick "
    "ones, which are knn, linear, ood, uncertainty, pictures and a short corruption)"
)
"""Written out, since the protocols import torch and the help must not wait for it; a test compares it with them."""


def option(default: Any, doc: str, *, form: str, read_by: tuple[str, ...], files: bool = False) -> Any:
    """A field: its line of documentation, the form of its value, the protocols that read it, whether it names files."""
    metadata = {"doc": doc, "form": form, "read_by": read_by, "files": files}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every field has a default."""

    baselines: str = option(
        BASELINES[0],
        "all, or none: no raw pixels and untrained networks, in half of the time (default: all)",
        form="all|none",
        read_by=("knn", "linear", "lowshot", "ood"),
    )
    near: tuple[str, ...] = option(
        (),
        "those sets of --ood that are near the training images; means are then over near and far sets separately",
        form="SPEC,...",
        read_by=("ood",),
    )
    corrupted: str | None = option(
        None,
        "stored corrupted images (CIFAR-10-C or ImageNet-C as published; default: generated)",
        form="SPEC",
        read_by=("corruption",),
        files=True,
    )
    corruptions: tuple[str, ...] = option(
        COMMON,
        "kinds of corruption (default: the fifteen of ImageNet-C; without --protocols four of them)",
        form="NAME,...",
        read_by=("corruption",),
    )
    severities: tuple[int, ...] = option(
        SEVERITIES, "severities of each corruption, of 1 to 5 (default: all)", form="N,...", read_by=("corruption",)
    )
    corruption_parameters: str = option(
        AUTO,
        "how strong the severities of generated corruptions are: imagenet-c, cifar-10-c or auto (default: auto, which "
        "is cifar-10-c for encoders that see 64 pixels or less)",
        form="NAME",
        read_by=("corruption",),
    )
    corruption_generator: str = option(
        GENERATORS[0],
        "how corruptions are generated: torch, in batches on any device, or imagecorruptions, the reference for "
        "imagenet-c, on all cores (default: torch)",
        form="NAME",
        read_by=("corruption",),
    )
    transfer: tuple[str, ...] = option(
        (), "other labelled sets to fine-tune on", form="SPEC,...", read_by=("transfer",)
    )
    label_lists: tuple[str, ...] = option(
        (),
        "files with the names of the labelled images, one per line, such as the published 1 % and 10 % lists "
        "(default: balanced random subsets)",
        form="FILE,...",
        read_by=("lowshot", "semi"),
        files=True,
    )
    draws: int = option(
        DRAWS,
        f"random subsets of labels for 1 % and 10 % (default: {DRAWS})",
        form="N",
        read_by=("lowshot", "semi"),
    )
    linear_epochs: int = option(
        100, "epochs of the linear classifier on augmented images (default: 100)", form="N", read_by=("linear-paper",)
    )
    finetune_epochs: int | None = option(
        None, "epochs of fine-tuning (default: by the number of images)", form="N", read_by=("semi", "transfer")
    )

    def __post_init__(self) -> None:
        if self.baselines not in BASELINES:
            raise UsageError(f"--baselines is {self.baselines!r}; allowed: {', '.join(BASELINES)}.")
        check_names(self.corruptions)
        check_severities(self.severities)
        check_parameters(self.corruption_parameters, auto=True)
        check_generator(self.corruption_generator, self.corruption_parameters)
        for name, usual in (("corruption_parameters", AUTO), ("corruption_generator", GENERATORS[0])):
            if self.corrupted is not None and getattr(self, name) != usual:
                raise UsageError(
                    f"{flag(name)} is {getattr(self, name)}, but --corrupted {self.corrupted} is a stored set, so "
                    "nothing is generated; give one of them."
                )
        if self.label_lists and self.draws != DRAWS:
            raise UsageError(
                f"--draws is {self.draws}, but --label-lists gives the subsets of labels, so none are drawn; "
                "give one of them."
            )
        for name in ("draws", "linear_epochs", "finetune_epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{flag(name)} is {value}; allowed: 1 or more.")


def flag(name: str) -> str:
    """The field's name on the command line."""
    return f"--{name.replace('_', '-')}"


def read_options(texts: Mapping[str, str | None]) -> Options:
    """The options from texts of the command line, by field name; None: not given."""
    hints = typing.get_type_hints(Options)
    given = {name: text for name, text in texts.items() if text is not None}
    return Options(**{name: convert(flag(name), text, hints[name]) for name, text in given.items()})


def read_by(options: Options, protocol: str) -> dict[str, Any]:
    """The options that a protocol reads, as JSON writes them: part of its result's identity."""
    values = {field.name: getattr(options, field.name) for field in _fields(protocol)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def files_of(options: Options, protocol: str) -> list[str]:
    """The files and folders that options of a protocol name."""
    values = [getattr(options, field.name) for field in _fields(protocol) if field.metadata["files"]]
    return [file for value in values for file in (value if isinstance(value, tuple) else filter(None, [value]))]


def check_read(options: Options, protocols: Sequence[str], left_out: Mapping[str, str]) -> None:
    """Refuse options that none of the protocols reads: they would have no effect.

    `left_out` has the reason for each protocol that does not run.
    """
    unread: list[str] = []
    add: list[str] = []
    for field in dataclasses.fields(Options):
        readers = field.metadata["read_by"]
        if getattr(options, field.name) != field.default and not set(readers) & set(protocols):
            needs = [f", which {left_out[name]}" for name in readers if name in left_out]
            unread.append(f"{_argument(options, field)} (read by {', '.join(readers)}{''.join(needs)})")
            add += [] if needs else [readers[0]]
    if unread:
        more = ",".join(dict.fromkeys([*protocols, *add]))
        do = f"add the protocols that read them: --protocols {more}" if add else "give what they need"
        raise UsageError(
            f"No protocol that is to run ({', '.join(protocols)}) reads {', '.join(unread)}. "
            f"Leave these options out, or {do}."
        )


def as_arguments(options: Options, protocol: str) -> str:
    """The options that a protocol reads and that are not the default, for a command line."""
    given = [field for field in _fields(protocol) if getattr(options, field.name) != field.default]
    return " ".join(_argument(options, field) for field in given)


def _argument(options: Options, field: dataclasses.Field) -> str:
    value = getattr(options, field.name)
    return f"{flag(field.name)} {shlex.quote(','.join(map(str, value)) if isinstance(value, tuple) else str(value))}"


def _fields(protocol: str) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(Options) if protocol in field.metadata["read_by"]]
