"""`prosmin export`: write a trained encoder for other programs."""

import argparse

from prosmin.commands.parsing import ENCODER, path

LINE = "write a trained encoder for other programs"
TAKES_FIELDS = False


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("run_folder", metavar="RUN", help=ENCODER)
    parser.add_argument("--format", required=True, metavar="FORMAT", help="onnx, timm, safetensors or huggingface")
    parser.add_argument(
        "--out", type=path, required=True, metavar="PATH", help="FILE.onnx, FILE.safetensors (timm) or a folder"
    )
    parser.add_argument(
        "--network", default="online", metavar="NAME", help="online, or target, its moving average (default: online)"
    )
    parser.add_argument("--half", action="store_true", help="safetensors: weights in float16")
    parser.add_argument("--patches", action="store_true", help="onnx: an output with the features of a ViT's patches")
    parser.add_argument("--again", action="store_true", help="replace what is already at PATH")


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Write the files, and print what was written."""
    from prosmin.export import export

    lines = export(
        options.run_folder,
        options.out,
        format=options.format,
        network=options.network,
        half=options.half,
        patches=options.patches,
        again=options.again,
    )
    print("\n".join(lines))
