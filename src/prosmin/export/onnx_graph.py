"""ONNX: evaluation views (N, 3, h, h) in; features, mean, scale and patches out, for any number N of images."""

import copy
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from prosmin.encoder import Encoder
from prosmin.encoder.calibrated import CALIBRATION
from prosmin.errors import ProsminError, UsageError
from prosmin.export.card import (
    BATCHES,
    Form,
    card_of,
    check_agreement,
    describe_encoder,
    describe_preprocessing,
    outputs_of,
    random_views,
    write_card,
)
from prosmin.models.vit import features_and_patches

TOLERANCE = 1e-4
"""Of an output's size: the rounding of float32 sums in another order is a hundredth of this."""

TORCH = "2.11"
"""The oldest torch whose exporter is tested: that of 2.6 cannot export these networks."""

_DATA = ".data"
"""The ending of the second file that torch writes for 1.5 GB of weights or more."""

_REMEDY = "Try another version of torch, onnxscript or onnxruntime; --format timm needs none of them."

_MEANINGS = {
    "features": "the backbone's representation, for classifiers and neighbours",
    "mean": "the embedding of the image, or the mean of its forecast distribution",
    "scale": "the standard deviation of that distribution; the mean of its logarithm is encoder.forecast_uncertainty, "
    "and encoder.uncertainty is another number",
    "patches": "features of each patch (h, w, D), row 0 at the top: the last block's tokens after the final norm",
}


_CALIBRATED = _MEANINGS | {
    "mean": "the mean of the forecast of the whitened features of the typical view: the middle of the image, without "
    "changes of colour. This file does not compute what is forecast; encoder.observe does",
}


class _Graph(nn.Module):
    """The encoder as a function of tensors."""

    def __init__(self, method: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.kept: list[Tensor] = []
        if "patches" in names:
            method = copy.deepcopy(method)
            method.set_submodule("online.backbone", _Keeping(method.get_submodule("online.backbone"), self.kept))
        self.method = method

    def forward(self, views: Tensor) -> tuple[Tensor, ...]:
        """(N, 3, h, h) -> the named outputs."""
        outputs = self.method.encode(views)._asdict()  # type: ignore[operator]
        if self.kept:
            outputs["patches"] = self.kept.pop()
        return tuple(outputs[name] for name in self.names)


class _Keeping(nn.Module):
    """A ViT that also keeps its patch tokens, so that the graph has one pass through it and not two."""

    def __init__(self, vit: nn.Module, kept: list[Tensor]) -> None:
        super().__init__()
        self.vit, self.kept = vit, kept

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, h, h) -> features (N, D)."""
        features, patches = features_and_patches(self.vit, x)
        self.kept.append(patches)
        return features


def write_patches(encoder: Encoder, file: Path) -> list[str]:
    """The same with the output `patches`."""
    if not encoder.has_patches:
        raise UsageError(
            f"--patches needs a ViT, and the backbone of this encoder is {encoder.config.backbone.name}. "
            "Leave --patches out."
        )
    return write(encoder, file, patches=True)


def write(encoder: Encoder, file: Path, *, patches: bool = False) -> list[str]:
    """Trace, describe, write and compare with onnxruntime."""
    example = random_views(encoder.config.views, 2)  # torch.export would take a batch of 1 for a constant
    outputs = outputs_of(encoder, example, patches=patches)
    program = _traced(_Graph(encoder.method, list(outputs)).eval(), example, list(outputs))
    _remove_paths(program.model)
    _rename_inner(program.model, set(outputs))
    calibration = encoder.card.get(CALIBRATION)
    meanings = _MEANINGS if calibration is None else _CALIBRATED
    card = {
        "format": 1,
        "made_of": describe_encoder(encoder),
        **({} if calibration is None else {"calibration": _described(calibration)}),
        "input": {"name": "views", "type": "float32", "shape": ["N", *example.shape[1:]]},
        "outputs": {
            name: {"type": "float32", "shape": ["N", *value.shape[1:]], "meaning": meanings[name]}
            for name, value in outputs.items()
        },
        "absent": [name for name in _MEANINGS if name not in (*outputs, "patches")],
        "preprocessing": describe_preprocessing(encoder.config.views),
        "opset": program.model.opset_imports[""],
    }
    program.model.metadata_props.update({name: json.dumps(value) for name, value in card.items()})
    program.save(file)
    found = check_agreement(encoder, _Session(file), tolerance=TOLERANCE, remedy=_REMEDY)
    card["checked"] = {"with": "onnxruntime", "batches": list(BATCHES), "tolerance": TOLERANCE, "deviation": found}
    write_card(card_of(file), card)
    lines = _lines(encoder, card, worst=max(found.values()))
    weights = file.with_name(file.name + _DATA)
    return [*lines, f"{weights.name} has the weights: move both files together"] if weights.exists() else lines


def _described(calibration: dict[str, Any]) -> dict[str, Any]:
    """What `prosmin calibrate` did, without the paths of its images."""
    names = ("images", "views", "seed", "step", "held_out", "prosmin")
    return {"by": "prosmin calibrate", **{name: calibration[name] for name in names}}


def _traced(graph: nn.Module, example: Tensor, names: list[str]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the comparison shows what matters
            return torch.onnx.export(
                graph,
                (example,),
                dynamo=True,
                verbose=False,
                input_names=["views"],
                output_names=names,
                dynamic_shapes={"views": {0: torch.export.Dim("N")}},
            )
    except Exception as error:  # tracing raises many kinds
        old = TorchVersion(torch.__version__) < TORCH
        newer = f"Install torch {TORCH} or later (this is {torch.__version__}), or export" if old else "Export"
        raise ProsminError(
            f"The network cannot be written as ONNX: {_first_line(error)}. "
            f"{newer} it with --format timm or --format safetensors."
        ) from error


def _remove_paths(model: Any) -> None:
    """Remove the exporter's notes, which have the paths of source files on this machine."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.graph.metadata_props.clear()


def _rename_inner(model: Any, names: set[str]) -> None:
    """Rename inner values with the name of an output: they are named after operations, such as `mean`."""
    outputs = {id(value) for value in model.graph.outputs}
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.name in names and id(value) not in outputs:
                value.name = f"inner.{value.name}"


class _Session:
    """An ONNX file in onnxruntime, on the CPU."""

    def __init__(self, file: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        with _onnxruntime_errors():
            self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def __call__(self, views: Tensor) -> dict[str, Tensor]:
        """(N, 3, h, h) -> outputs by name."""
        names = [output.name for output in self.session.get_outputs()]
        with _onnxruntime_errors():
            values = self.session.run(names, {"views": views.numpy()})
        return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}


@contextmanager
def _onnxruntime_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # its errors have no common class
        raise ProsminError(
            f"onnxruntime cannot run the graph: {_first_line(error)}. Nothing was written. {_REMEDY}"
        ) from error


def _first_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__).rstrip(".")


def _lines(encoder: Encoder, card: dict[str, Any], *, worst: float) -> list[str]:
    side = encoder.config.views.global_size
    absent = f"; {card['made_of']['encoder']} has no {' and no '.join(card['absent'])}" if card["absent"] else ""
    return [
        f"in: views (N, 3, {side}, {side}), normalised as in its card; out: {', '.join(card['outputs'])}{absent}",
        f"onnxruntime agrees with the encoder to {worst:.0e} on random images",
    ]


FORM = Form(
    write=write,
    write_patches=write_patches,
    suffix=".onnx",
    entry="opset",
    names=(_DATA,),
    packages=("onnx", "onnxscript", "onnxruntime"),
)
