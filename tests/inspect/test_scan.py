"""Each image is decoded once; a scan continues, and repeats only what is new or has changed."""

import hashlib
import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from inspecting import encoded, numbered, picture, write_images
from prosmin.data.decode import upright_size
from prosmin.data.sources import open_source
from prosmin.embed import parts
from prosmin.encoder import load
from prosmin.errors import ProsminError
from prosmin.files import file_hash
from prosmin.inspect import scan as scanning
from prosmin.inspect.scan import MeasuredSource, measurement, measures, scan, settings_of
from prosmin.inspect.store import Store
from prosmin.inspect.table import write_scanned


@pytest.fixture(scope="module")
def loaded(encoder):
    return load(encoder, device="cpu")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts of 4 images."""
    monkeypatch.setattr(parts, "PART", 4)
    monkeypatch.setattr(scanning, "PART", 4)


@pytest.fixture
def folder(tmp_path):
    return write_images(tmp_path / "images", numbered(10))


@pytest.fixture
def store(tmp_path, loaded):
    return Store(tmp_path / "out", "images.parquet", settings_of(loaded))


def scanned(folder, loaded, store):
    return scan(open_source(f"folder:{folder}"), loaded, store, title="images")


class TestMeasurement:
    def test_size_before_the_reduction_and_upright(self):
        image = Image.new("RGB", (1000, 600))
        exif = Image.Exif()
        exif[0x0112] = 6  # turned by a quarter
        data = encoded(image, "JPEG", exif=exif)
        decoded = torch.zeros(3, 768, 461, dtype=torch.uint8)
        found = measurement(decoded, data, changed=None)
        assert (found.width, found.height) == (600, 1000)
        assert max(Image.open(io.BytesIO(found.thumbnail)).size) == scanning.THUMBNAIL

    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
    def test_size_of_every_format(self, kind):
        assert upright_size(encoded(Image.new("RGB", (30, 20)), kind)) == (20, 30)

    def test_size_of_what_is_no_image(self):
        assert upright_size(b"nonsense") == (0, 0)

    def test_pixels_are_the_same_in_another_container(self):
        image = picture(1)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        png, bmp = (measurement(pixels, encoded(image, kind), changed=None) for kind in ("PNG", "BMP"))
        assert png.pixels == bmp.pixels
        assert png.content != bmp.content

    def test_pixels_of_another_shape_differ(self):
        first, second = (torch.zeros(3, *size, dtype=torch.uint8) for size in ((2, 8), (4, 4)))
        assert measurement(first, b"", changed=None).pixels != measurement(second, b"", changed=None).pixels


class TestRows:
    def test_have_what_was_measured(self, folder, loaded, store):
        found = scanned(folder, loaded, store)
        values = found.rows.arrays(["features", "mean_log_scale", "content", "fingerprint", "height", *measures()])
        expected = loaded(str(folder))
        # Other batches: sums in another order.
        assert np.allclose(values["features"], expected.features.numpy(), atol=1e-5)
        assert np.allclose(values["mean_log_scale"], expected.scale.log().mean(1).numpy(), atol=1e-5)
        contents = [hashlib.blake2b((folder / name).read_bytes(), digest_size=16).hexdigest() for name in numbered(10)]
        assert values["content"].tolist() == contents == [file_hash(folder / name) for name in numbered(10)]
        assert values["height"].tolist() == [24] * 10
        assert values["fingerprint"].shape[0] == 10

    def test_each_image_is_read_and_decoded_once(self, folder, loaded, store, monkeypatch):
        read = []
        image = MeasuredSource.image
        monkeypatch.setattr(MeasuredSource, "image", lambda self, i, data=None: read.append(i) or image(self, i, data))
        scanned(folder, loaded, store)
        assert sorted(read) == list(range(10))

    def test_memory_of_measurements_is_freed(self, folder, loaded, store, monkeypatch):
        made = []
        monkeypatch.setattr(scanning, "MeasuredSource", lambda source: made.append(MeasuredSource(source)) or made[-1])
        scanned(folder, loaded, store)
        assert made[0].measured == {}


class TestAgain:
    def test_only_new_and_changed_images_are_computed(self, folder, loaded, store):
        first = scanned(folder, loaded, store)
        write_scanned(store, first)
        before = first.rows.arrays(["content", "features"])
        (folder / "003.png").write_bytes(encoded(picture(77)))
        (folder / "005.png").unlink()
        write_images(folder, ["zzz.png"], seed=5)
        second = scanned(folder, loaded, store)
        after = second.rows.arrays(["content", "features"])
        assert second.computed == 2
        assert second.names() == [*(name for name in numbered(10) if name != "005.png"), "zzz.png"]
        kept = [0, 1, 2, 4, 6, 7, 8, 9]
        assert after["content"][[0, 1, 2, 4, 5, 6, 7, 8]].tolist() == before["content"][kept].tolist()
        assert np.array_equal(after["features"][[0, 1, 2, 4, 5, 6, 7, 8]], before["features"][kept])
        assert after["content"][3] != before["content"][3]

    def test_after_an_interruption_finished_parts_are_kept(self, folder, loaded, store, monkeypatch):
        write = scanning.write_table

        def interrupted(path, table):
            if path.name.endswith("00002.parquet"):
                raise KeyboardInterrupt
            write(path, table)

        with monkeypatch.context() as patch:
            patch.setattr(scanning, "write_table", interrupted)
            with pytest.raises(KeyboardInterrupt):
                scanned(folder, loaded, store)
        found = scanned(folder, loaded, store)
        assert found.computed == 2  # of parts of 4, 4 and 2 images
        assert len(found) == 10

    def test_a_damaged_part_is_computed_again(self, folder, loaded, store):
        scanned(folder, loaded, store)
        damaged = sorted(store.parts.glob("*.parquet"))[0]
        damaged.write_bytes(damaged.read_bytes()[:100])
        assert scanned(folder, loaded, store).computed == 4

    def test_rows_of_another_encoder_are_not_used(self, folder, loaded, store):
        scanned(folder, loaded, store)
        other = Store(store.folder, store.name, {**store.settings, "encoder": "other"})
        assert scanned(folder, loaded, other).computed == 10


class TestUnreadable:
    def test_are_named_and_tried_again(self, folder, loaded, store):
        (folder / "004.png").write_bytes(b"nonsense")
        found = scanned(folder, loaded, store)
        assert [name for name, _ in found.unreadable] == ["004.png"]
        assert len(found) == 9
        (folder / "004.png").write_bytes(encoded(picture(4)))
        assert scanned(folder, loaded, store).unreadable == []

    def test_a_broken_file_that_is_new_alone_is_no_error(self, folder, loaded, store):
        scanned(folder, loaded, store)
        (folder / "new.png").write_bytes(b"")
        assert [name for name, _ in scanned(folder, loaded, store).unreadable] == ["new.png"]

    def test_a_file_that_vanishes_after_the_listing(self, folder, loaded, store):
        source = open_source(f"folder:{folder}")
        (folder / "000.png").unlink()
        found = scan(source, loaded, store, title="images")
        assert [name for name, _ in found.unreadable] == ["000.png"]
        assert found.names() == numbered(10)[1:]

    def test_a_file_that_changes_after_the_listing_is_read_again_next_time(self, folder, loaded, store, monkeypatch):
        new = encoded(picture(99))
        marks = scanning.marks_of

        def changing(source):
            found = marks(source)
            (folder / "000.png").write_bytes(new)
            os.utime(folder / "000.png", ns=(1, 1))
            return found

        with monkeypatch.context() as patch:
            patch.setattr(scanning, "marks_of", changing)
            first = scanned(folder, loaded, store)
        assert first.rows.arrays(["content"])["content"][0] == hashlib.blake2b(new, digest_size=16).hexdigest()
        assert scanned(folder, loaded, store).computed == 1

    def test_only_broken_files_are_an_error_that_names_some(self, tmp_path, loaded, store):
        folder = tmp_path / "broken"
        folder.mkdir()
        (folder / "a.png").write_bytes(b"nonsense")
        (folder / "b.jpg").write_bytes(b"")
        with pytest.raises(ProsminError, match=r"a\.png"):
            scanned(folder, loaded, store)


def test_images_of_a_parquet_file(tmp_path, loaded, store):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"image": [encoded(picture(i)) for i in range(5)], "label": [0, 1, 0, 1, 1]}), path)
    found = scan(open_source(f"parquet:{path}"), loaded, store, title="images")
    assert found.labels() == ["0", "1", "0", "1", "1"]
    assert scan(open_source(f"parquet:{path}"), loaded, store, title="images").computed == 0
