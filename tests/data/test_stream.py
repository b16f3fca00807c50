"""The stream of batches: the same images from memory and from disk, in the order asked for; no thread is left."""

import io
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from prosmin.data import stream as module
from prosmin.data.image_sets import load_pictures
from prosmin.data.packing import Packer
from prosmin.data.sources import open_source
from prosmin.data.stream import Feed, Stream, open_feed, picture_batches
from prosmin.data.unreadable import CheckedSource
from prosmin.errors import ProsminError

N = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of many sizes: tall, wide, tiny, and one beyond the bounds."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    sizes = [
        (900, 1200),
        (1, 1),
        (300, 20),
        (20, 300),
        *(tuple(rng.integers(8, 200, 2)) for _ in range(N - 4)),
    ]
    for i, (height, width) in enumerate(sizes):
        if i % 2:
            Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(root / f"{i:02d}.png")
        else:  # smooth, so that two decoders of a JPEG agree on it
            corners = Image.fromarray(rng.integers(100, 156, (2, 2, 3), dtype=np.uint8))
            corners.resize((width, height), Image.Resampling.BILINEAR).save(root / f"{i:02d}.jpg")
    return root


@pytest.fixture
def damaged(folder, tmp_path):
    """The same, with images 3, 4 and 23 unreadable."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(b"" if file.stem in ("03", "04", "23") else file.read_bytes())
    return tmp_path


def streamed(spec, **options) -> Feed:
    feed = open_feed(spec, device="cpu", memory_limit=1, **options)
    assert feed.streamed
    return feed


def whole(spec, **options) -> Feed:
    feed = open_feed(spec, device="cpu", **options)
    assert not feed.streamed
    return feed


def orders(seed: int = 0, steps: int = 7, batch: int = 5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, N, (batch,), generator=generator) for _ in range(steps)]


def running_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prosmin-")]


def assert_same(one, other) -> None:
    assert torch.equal(one.index, other.index)
    assert torch.equal(one.sizes, other.sizes)
    for a, b, (height, width) in zip(one.images, other.images, one.sizes.tolist(), strict=True):
        assert torch.equal(a[:, :height, :width], b[:, :height, :width])
        for image in (a, b):
            assert image[:, height:].sum() == 0
            assert image[:, :, width:].sum() == 0


def test_memory_and_stream_give_the_images_asked_for(folder):
    spec = f"folder:{folder}"
    pictures = load_pictures(spec)
    memory, stream = whole(spec), streamed(spec)
    assert len(memory) == len(stream) == N
    assert memory.key(3) == stream.key(3) == "03.png"
    asked = orders()
    for order, one, other in zip(asked, memory.batches(asked), stream.batches(asked), strict=True):
        assert torch.equal(one.index, order)
        assert torch.equal(one.images, pictures.images[order])
        assert torch.equal(one.sizes, pictures.sizes[order])
        assert_same(one, other)
        assert other.images.dtype == torch.uint8
        assert other.images.is_contiguous()
    assert running_threads() == []


def test_streaming_twice_is_bit_identical(folder):
    stream = streamed(f"folder:{folder}")
    for one, other in zip(stream.batches(orders()), stream.batches(orders()), strict=True):
        assert torch.equal(one.images, other.images)


def test_batches_of_any_length_and_none(folder):
    stream = streamed(f"folder:{folder}")
    asked = [torch.tensor([7]), torch.arange(N), torch.tensor([2, 2, 2])]
    assert [len(batch.images) for batch in stream.batches(asked)] == [1, N, 3]
    assert list(stream.batches([])) == []
    assert list(whole(f"folder:{folder}").batches([])) == []


def test_unreadable_images_are_replaced_by_the_next(damaged):
    spec = f"folder:{damaged}"
    memory, stream = whole(spec, max_bad=0.2), streamed(spec, max_bad=0.2)
    asked = [torch.tensor([2, 3, 4, 5]), torch.tensor([22, 23, 0]), torch.tensor([4, 4])]
    batches = list(stream.batches(asked))
    assert [batch.index.tolist() for batch in batches] == [[2, 5, 5, 5], [22, 0, 0], [5, 5]]
    for one, other in zip(memory.batches(asked), batches, strict=True):
        assert_same(one, other)
    assert len(memory) == len(stream) == N
    assert [line.split(":")[0] for line in stream.bad] == ["03.png", "04.jpg", "23.png"]
    assert memory.bad == stream.bad


def test_only_images_that_were_read_are_counted(damaged):
    stream = streamed(f"folder:{damaged}", max_bad=0.2)
    list(stream.batches([torch.tensor([0, 1, 2])]))
    assert stream.bad == []
    list(stream.batches([torch.tensor([3])]))
    assert len(stream.bad) == 2  # 3, and 4 that should have replaced it


@pytest.mark.parametrize("overlap", [True, False])
def test_without_replacement_unreadable_images_are_blank_or_left_out(damaged, overlap):
    source = CheckedSource(open_source(f"folder:{damaged}"))
    stream = Stream(source, device=torch.device("cpu"), replace=False, overlap=overlap)
    (batch,) = stream.batches([torch.tensor([2, 3, 23])])
    assert batch.index.tolist() == [2, 3, 23]
    assert source.readable(batch.index).tolist() == [True, False, False]
    assert batch.sizes[1].tolist() == [1, 1]
    assert not batch.images[1].any()
    batches = picture_batches(open_source(f"folder:{damaged}"), size=2, device=torch.device("cpu"), max_bad=0.2)
    assert torch.cat([batch.index for batch in batches]).tolist() == [i for i in range(N) if i not in (3, 4, 23)]


def test_too_many_unreadable_images_stop_the_run(damaged):
    stream = streamed(f"folder:{damaged}", max_bad=2 / N)
    assert len(list(stream.batches([torch.tensor([3, 5])]))) == 1  # two are allowed
    with pytest.raises(ProsminError, match=r"(?s)3 of 24 .*--data\.max_bad SHARE.*03\.png.*04\.jpg.*23\.png"):
        list(stream.batches([torch.arange(N)]))
    with pytest.raises(ProsminError, match=r"--data\.max_bad SHARE"):
        open_feed(f"folder:{damaged}", device="cpu", max_bad=0.01)
    assert running_threads() == []


class Slow:
    """A source whose images take time to read, or raise an unexpected error."""

    spec, labels, classes = "slow", None, ()

    def __init__(self, *, seconds: float = 0.0, fails: bool = False) -> None:
        self.seconds, self.fails, self.reads = seconds, fails, 0

    def __len__(self) -> int:
        return N

    def key(self, i: int) -> str:
        return str(i)

    def read(self, i: int) -> torch.Tensor:
        self.reads += 1
        time.sleep(self.seconds)
        if self.fails and i == 9:
            raise RuntimeError("unforeseen")
        return torch.full((3, 4, 4), i, dtype=torch.uint8)


def stream_of(source: Slow, **options) -> Stream:
    return Stream(CheckedSource(source), device=torch.device("cpu"), **options)


@pytest.mark.parametrize("overlap", [True, False])
def test_errors_of_workers_reach_the_caller(overlap):
    batches = stream_of(Slow(fails=True), overlap=overlap).batches([torch.tensor([i]) for i in range(N)])
    seen = []
    with pytest.raises(RuntimeError, match="unforeseen"):
        seen.extend(batch.index.item() for batch in batches)
    assert seen == list(range(9))
    assert running_threads() == []


def test_errors_of_the_orders_reach_the_caller():
    def broken():
        yield torch.tensor([1])
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(stream_of(Slow()).batches(broken()))
    assert running_threads() == []


def test_a_caller_that_stops_early_leaves_nothing_running():
    source = Slow(seconds=0.01)
    batches = stream_of(source).batches([torch.arange(N)] * 50)
    next(batches)
    batches.close()
    assert running_threads() == []
    # Of 1,200 images only those of the batches ahead were read.
    assert source.reads <= (1 + module.AHEAD) * N


def test_the_next_batches_are_ready():
    source = Slow()
    batches = stream_of(source).batches([torch.arange(N)] * 50)
    next(batches)
    deadline = time.monotonic() + 20
    while source.reads < module.AHEAD * N and time.monotonic() < deadline:
        time.sleep(0.01)  # no batch is requested
    assert source.reads == module.AHEAD * N
    assert module.AHEAD >= 3  # the one in use and two more
    batches.close()


def test_orders_are_taken_only_as_far_ahead_as_needed():
    taken = []

    def endless():
        step = 0
        while True:
            taken.append(step)
            yield torch.tensor([step % N])
            step += 1

    batches = stream_of(Slow()).batches(endless())
    assert [next(batches).index.item() for _ in range(30)] == [i % N for i in range(30)]
    batches.close()
    assert len(taken) <= 30 + module.AHEAD


def test_ctrl_c_ends_the_program(folder):
    program = f"""
import sys, time, torch
from prosmin.data.stream import open_feed
feed = open_feed("folder:{folder}", device="cpu", memory_limit=1)
for step, batch in enumerate(feed.batches([torch.arange({N})] * 100_000)):
    print(step, flush=True)
    time.sleep(0.05)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore Ctrl-C, and so would their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout.readline() == "0\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode != 0
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_pages_that_never_shrink(damaged, monkeypatch):
    """As on a GPU: an image that does not fit is moved to larger pages."""

    def grow(packer, side):
        packer._side = tuple(map(max, side, packer._side))
        return packer._side

    monkeypatch.setattr(Packer, "_next_side", grow)
    asked = orders(steps=12, batch=3)
    stream = streamed(f"folder:{damaged}", max_bad=0.2)
    sides = []
    for one, other in zip(whole(f"folder:{damaged}", max_bad=0.2).batches(asked), stream.batches(asked), strict=True):
        assert_same(one, other)
        sides.append(other.images.shape[2:])
    assert len(set(sides)) > 1
    assert sides[-1] == sides[-2] == max(sides)


def test_images_are_padded_with_zeros(damaged):
    """In every batch, whether its images fit the pages of the last one or not."""
    stream = streamed(f"folder:{damaged}", max_bad=0.2)
    orders = [torch.arange(start, start + 3) % len(stream) for start in (0, 1, 2, 0, 0)]
    for batch in stream.batches(orders):
        for image, (height, width) in zip(batch.images, batch.sizes.tolist(), strict=True):
            assert image[:, :height, :width].any()
            assert not image[:, height:].any()
            assert not image[:, :, width:].any()


def test_empty_source(tmp_path):
    with pytest.raises(ProsminError, match="no images"):
        open_feed(f"folder:{tmp_path}", device="cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("nvjpeg", [False, True])
def test_streaming_to_a_gpu_gives_what_the_cpu_has(damaged, nvjpeg):
    spec = f"folder:{damaged}"
    asked = orders(steps=20, batch=9)
    expected = whole(spec, max_bad=0.2).batches(asked)
    stream = open_feed(spec, device="cuda", memory_limit=1, max_bad=0.2, nvjpeg=nvjpeg)
    memory = open_feed(spec, device="cuda", max_bad=0.2)
    for one, other, third in zip(expected, stream.batches(asked), memory.batches(asked), strict=True):
        assert other.images.is_cuda
        assert other.sizes.is_cuda
        images, sizes = other.images.cpu(), other.sizes.cpu()
        if nvjpeg:  # another decoder and another filter: equal to a few grey levels
            assert torch.equal(one.index, other.index)
            for a, b, (height, width) in zip(one.images, images, one.sizes.tolist(), strict=True):
                difference = a[:, :height, :width].float() - b[:, :height, :width].float()
                assert difference.abs().mean() < 3  # the smallest images change by seven levels a pixel
        else:
            assert_same(one, other._replace(images=images, sizes=sizes))
        assert_same(one, third._replace(images=third.images.cpu(), sizes=third.sizes.cpu()))


def test_bytes_and_tensors_may_mix():
    class Mixed(Slow):
        def read(self, i: int):
            if i % 2:
                return super().read(i)
            file = io.BytesIO()
            Image.new("RGB", (4, 4), (i, i, i)).save(file, "PNG")
            return file.getvalue()

    (batch,) = stream_of(Mixed()).batches([torch.arange(N)])
    assert batch.images[:, 0, 0, 0].tolist() == list(range(N))
