"""The benchmark: times with a fake clock, numbers of parameters, and one run from JPEG files to the saved table."""

import functools
import io
import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from prosmin.benchmark import measure as measuring
from prosmin.benchmark.measure import count_parameters
from prosmin.benchmark.run import benchmark, choose, print_parts
from prosmin.benchmark.trainer import Trainer, random_orders, release_memory
from prosmin.cli import main
from prosmin.data.stream import Batch
from prosmin.errors import ProsminError, UsageError
from prosmin.methods import build_method
from tiny_methods import METHODS, tiny_method

CPU = torch.device("cpu")
TINY = {"backbone.name": "resnet8_cifar", "heads.hidden": "16", "heads.dim": "8", "training.batch_size": "8"}
VIT = {"backbone.patch_size": "8", "backbone.width": "24", "backbone.depth": "1", "backbone.heads": "3"}
VIT |= {"heads.hidden": "16", "heads.dim": "8", "views.local": "1", "training.batch_size": "8"}


class Clock:
    """Time that passes only in calls: each takes the next of the given seconds, the last one repeatedly."""

    def __init__(self, monkeypatch, *seconds):
        self.now, self.calls = 0.0, 0
        self._seconds = itertools.chain(seconds[:-1], itertools.repeat(seconds[-1]))
        monkeypatch.setattr(measuring.time, "perf_counter", lambda: self.now)

    def run(self):
        self.calls += 1
        self.now += next(self._seconds)


def test_repeats_fill_their_seconds_and_the_warm_up_does_not_count(monkeypatch):
    clock = Clock(monkeypatch, 30.0, 20.0, 0.1)  # the first calls compile
    found = measuring.measure(clock.run, CPU, warmup=2, repeats=3, seconds=0.5)
    assert (found.calls, found.repeats) == (5, 3)
    assert clock.calls == 2 + 1 + 3 * 5
    assert found.median == pytest.approx(0.1)
    assert found.highest == pytest.approx(0.1)


def test_median_fastest_and_slowest(monkeypatch):
    clock = Clock(monkeypatch, 1.0, 1.0, 4.0, 2.0, 3.0)
    found = measuring.measure(clock.run, CPU, warmup=1, repeats=3, seconds=0.5)
    assert (found.lowest, found.median, found.highest) == pytest.approx((2.0, 3.0, 4.0))
    row = found.row(60)
    assert (row["ms"], row["images_per_second"]) == pytest.approx((3000.0, 20.0))


def test_limits_of_time_and_calls(monkeypatch):
    clock = Clock(monkeypatch, 10.0)
    assert measuring.measure(clock.run, CPU, warmup=1, repeats=9, limit=15.0).repeats == 2
    clock = Clock(monkeypatch, 1e-6)
    assert measuring.measure(clock.run, CPU, repeats=1).calls == measuring.MOST_CALLS


@pytest.mark.parametrize("name", METHODS)
def test_every_trained_parameter_is_in_one_part(name):
    method = build_method(tiny_method(name))
    counts = count_parameters(method)
    assert counts["backbone"] == sum(p.numel() for p in method.online.backbone.parameters())
    assert counts["backbone"] + counts["projector"] == sum(p.numel() for p in method.online.parameters())
    beside = [child for child, part in method.named_children() if any(True for _ in part.parameters())]
    assert set(counts) == {"backbone", "projector", *beside} - {"online", "target"}
    everything = sum(p.numel() for p in method.parameters())
    assert sum(counts.values()) == everything - sum(p.numel() for p in method.target.parameters())


def test_methods_that_cannot_use_the_backbone_are_named_and_left_out():
    chosen, left_out = choose(recipe="demo", file=None, overrides=TINY, methods=["dino", "ibot", "dino"])
    assert [config.method.name for config in chosen] == ["dino"]
    assert chosen[0].backbone.name == "resnet8_cifar"
    assert "patch tokens" in left_out["ibot"]
    with pytest.raises(UsageError, match=r"ibot .*patch tokens"):
        choose(recipe="demo", file=None, overrides=TINY, methods=["ibot"])
    with pytest.raises(UsageError, match="dinno"):
        choose(recipe="demo", file=None, overrides=TINY, methods=["dino", "dinno"])
    with pytest.raises(UsageError, match=r"method\.name"):
        choose(recipe="demo", file=None, overrides={"method.name": "dino"}, methods=["mocov3"])


def _times(decode, views, step, whole):
    names = ("decode", "views", "step", "end to end")
    return {name: ms and {"ms": ms} for name, ms in zip(names, (decode, views, step, whole), strict=True)}


@pytest.mark.parametrize(
    ("times", "streamed", "words"),
    [
        ((None, 1.0, 9.0, 10.0), False, ["The step is the bottleneck: 9 of the 10 ms", "already on the device"]),
        ((99.0, 1.0, 9.0, 10.0), False, ["The step is the bottleneck"]),  # decoded once, before
        ((None, 9.0, 1.0, 10.0), False, ["Making the views is the bottleneck: 9"]),
        ((40.0, 1.0, 9.0, 41.0), True, ["Decoding is the bottleneck: 40 ms", "4.0 times"]),
        ((4.0, 1.0, 9.0, 10.2), True, ["The step is the bottleneck", "4 ms, costs nothing"]),
        ((4.0, 1.0, 9.0, 13.0), True, ["The step is the bottleneck", "4 ms, adds 30%"]),
    ],
)
def test_the_bottleneck_is_the_largest_part(times, streamed, words):
    sentence = measuring.what_bounds(_times(*times), streamed=streamed)
    for word in words:
        assert word in sentence


@pytest.mark.parametrize("accumulate", ["1", "2"])
def test_a_step_trains_on_the_whole_batch(accumulate):
    trainer = Trainer(
        tiny_method(
            "prosmin", vit=True, training__batch_size="8", training__accumulate=accumulate, heads__batchnorm="false"
        )
    )
    before = {name: p.clone() for name, p in trainer.method.named_parameters()}
    seen = []
    trainer.method.register_forward_hook(lambda module, args, output: seen.append(len(output.losses)))
    images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    trainer.train(Batch(images, torch.full((8, 2), 32), torch.arange(8)))
    trainer.check()
    assert seen == [8 // int(accumulate)] * int(accumulate)
    moved = {name.split(".")[0] for name, p in trainer.method.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"online", "predictor", "target"}


def test_steps_that_are_not_finite_are_refused():
    trainer = Trainer(tiny_method("dino", vit=True, training__batch_size="4"))
    nan = torch.full((4, 3, 32, 32), math.nan)
    views = trainer.views(Batch(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), torch.full((4, 2), 32), torch.arange(4)))
    trainer.train([views._replace(global_views=torch.stack([nan, nan]))])
    with pytest.raises(ProsminError, match="not finite"):
        trainer.check()


def test_several_devices_and_parts_that_pretraining_refuses_are_refused():
    with pytest.raises(UsageError, match=r"compute\.devices is 2"):
        Trainer(tiny_method("dino", compute__devices="2"))
    for changes in ({"training__accumulate": "3"}, {"training__accumulate": "2", "views__local": "0"}):
        with pytest.raises(UsageError, match=r"training\.accumulate (is|3)"):
            Trainer(tiny_method("mocov3", training__batch_size="8", **changes))


def test_random_orders_fill_a_batch_from_fewer_images():
    first, second = itertools.islice(random_orders(3, batch=50), 2)
    assert set(first.tolist()) == {0, 1, 2}
    assert not torch.equal(first, second)
    assert torch.equal(first, next(random_orders(3, batch=50)))


@pytest.fixture
def folder(tmp_path):
    """Six JPEG files."""
    random = np.random.default_rng(0)
    for i in range(6):
        data = io.BytesIO()
        Image.fromarray(random.integers(0, 255, (40, 48, 3), dtype=np.uint8)).save(data, "JPEG")
        (tmp_path / f"{i}.jpg").write_bytes(data.getvalue())
    return f"folder:{tmp_path}"


@pytest.fixture
def quick(monkeypatch):
    """Measurements that are too short to be accurate."""
    monkeypatch.setattr(measuring, "measure", functools.partial(measuring.measure, warmup=1, repeats=2, seconds=0.001))
    monkeypatch.setattr(measuring, "AHEAD", 0)


def test_the_command_from_images_to_its_file(folder, tmp_path, quick, capsys):
    out = tmp_path / "out" / "speed.json"
    fields = VIT | {"compute.resident_gib": "0", "heads.bottleneck": "8"}
    typed = ["benchmark", "--recipe", "demo-vit", "--data", folder, "--methods", "dino,mocov3,ibot", "--out", str(out)]
    assert main([*typed, *(f"--{name}={value}" for name, value in fields.items())]) == 0
    saved = json.loads(out.read_text())
    assert [row["method"] for row in saved["rows"]] == ["dino", "ibot"]
    assert list(saved["left_out"]) == ["mocov3"]  # it has no bottleneck
    assert saved["command"].startswith("prosmin benchmark --recipe demo-vit --data")
    assert saved["hardware"]["torch"] == torch.__version__
    for row in saved["rows"]:
        assert set(row["parts"]) == {"decode", "views", "step", "end to end"}
        assert all(part["images_per_second"] > 0 for part in row["parts"].values())
        rate = row["parts"]["end to end"]["images_per_second"]
        assert row["hours"] == pytest.approx(300 * 1_281_167 / rate / 3600, rel=1e-3, abs=0.06)
        assert 0 < row["views_share"] < 1
        assert row["peak_memory_gib"] is None
        assert row["fingerprint"]
        assert row["views"] == "2x32 + 1x16"
        assert row["pictures"] == "decoded while they are used"
    printed = capsys.readouterr().out
    for words in ("DINO, vit", "end to end", "is the bottleneck", "ImageNet epochs", "left out: mocov3"):
        assert words in printed


def test_a_small_set_is_on_the_device_and_decoding_is_timed_separately(folder, tmp_path, quick, capsys):
    fields = VIT | {"method.name": "dino", "data.spec": folder}
    row = benchmark(recipe="demo-vit", overrides=fields, out=tmp_path / "speed.json")["rows"][0]
    assert row["pictures"] == "on the device whole"
    assert row["parts"]["decode"]["images_per_second"] > 0
    assert "already on the device" in capsys.readouterr().out


def test_images_stored_decoded_have_no_decoding_time(capsys):
    decoded = SimpleNamespace(read=lambda i: torch.zeros(3, 8, 8, dtype=torch.uint8))
    assert measuring.time_decoding(decoded, tiny_method("dino"), CPU) is None
    row = dict.fromkeys(("title", "backbone", "views", "batch_size", "precision", "compiled", "bound"), "")
    print_parts(row | {"views_share": 0.1, "parts": {"decode": None}})
    assert "the images are stored decoded" in capsys.readouterr().out


def test_release_memory_forgets_compiled_code():
    function = torch.compile(lambda x: x + 1, backend="eager")
    torch._dynamo.utils.counters.clear()
    function(torch.zeros(1))
    release_memory(CPU)
    function(torch.zeros(1))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
