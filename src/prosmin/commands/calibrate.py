"""`prosmin calibrate`: uncertainty for an encoder that stays as it is."""

import argparse

from prosmin.commands.parsing import ENCODER, check_folder, path

LINE = "give any encoder forecasts of known coverage, an uncertainty and an out-of-distribution score"
TAKES_FIELDS = False


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add = parser.add_argument
    add("encoder", metavar="RUN", help=f"the encoder: {ENCODER}")
    add("--data", required=True, metavar="SPEC", help="images like those that it will be used on, without labels")
    text = "a new folder for the calibrated encoder; the same command continues an unfinished one"
    add("--out", type=path, required=True, metavar="DIR", help=text)
    text = "images to use at most, chosen at random (default: 20000)"
    add("--images", type=int, default=20_000, metavar="N", help=text)
    add("--views", type=int, default=4, metavar="N", help="random views of each image, 2 to 100 (default: 4)")
    add(
        "--seed", type=int, default=0, metavar="N", help="of the views, the choice of images and the heads (default: 0)"
    )
    add("--batch", type=int, metavar="N", help="images computed at once, 1 to 512 (default: chosen for the device)")
    text = "allowed share of unreadable images (default: that of the run, usually 0.01)"
    add("--max-bad", type=float, metavar="SHARE", help=text)
    add("--precision", default="32-true", metavar="NAME", help="32-true (default), or bf16-mixed on a GPU")


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Calibrate, and print what the forecasts are worth."""
    check_folder(options.data)
    from prosmin.calibrate import Request, calibrate
    from prosmin.evaluation.metrics.intervals import wilson

    request = Request(
        data=options.data,
        out=options.out,
        images=options.images,
        views=options.views,
        seed=options.seed,
        batch=options.batch,
        max_bad=options.max_bad,
        precision=options.precision,
    )
    calibration = calibrate(options.encoder, request, command=options.line)
    found = calibration["held_out"]
    coverage_50, coverage_90, coverage_95, joint, skill = (
        f"{100 * found[name]:.1f}"
        for name in ("coverage_50", "coverage_90", "coverage_95", "joint_coverage_90_radius", "skill")
    )
    low, high = wilson(found["joint_coverage_90_radius"], found["images"])
    print(
        f"on {found['images']} held-out images: 50, 90 and 95 % intervals contain {coverage_50}, {coverage_90} and "
        f"{coverage_95} % of the coordinates, joint 90 % regions {joint} % of the images ({100 * low:.0f} to "
        f"{100 * high:.0f} % with {found['images']} images: 95 % confidence interval). Skill of forecasts of random "
        f"views: {skill} %; 0 is a forecast that does not see the image"
    )
    if calibration["step"] == 0:
        print("the images were too few to learn which of them are uncertain: the forecast's scale is the same for all")
    print(f"{options.out} can be used like a run: prosmin embed {options.out} --data SPEC --out FILE.parquet")
