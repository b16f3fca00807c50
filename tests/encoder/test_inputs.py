"""The forms of images that an encoder accepts, and those that it refuses."""

import io
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from coloured import coloured
from prosmin.data.image_sets import load_pictures
from prosmin.data.inputs import Handful, open_images
from prosmin.encoder import untrained
from prosmin.errors import ProsminError


class TestInputs:
    @pytest.mark.parametrize(
        "give",
        [
            lambda folder, images: images,
            lambda folder, images: list(images),
            lambda folder, images: images.permute(0, 2, 3, 1).numpy(),
            lambda folder, images: [image.permute(1, 2, 0).numpy() for image in images],
            lambda folder, images: [np.array(Image.open(folder / f"{i}.png")) for i in range(5)],
            lambda folder, images: folder,
            lambda folder, images: str(folder),
            lambda folder, images: f"folder:{folder}",
            lambda folder, images: load_pictures(f"folder:{folder}"),
            lambda folder, images: sorted(folder.iterdir()),
            lambda folder, images: [str(path) for path in sorted(folder.iterdir())],
            lambda folder, images: (folder / f"{i}.png" for i in range(5)),
            lambda folder, images: [Image.open(folder / f"{i}.png") for i in range(5)],
            lambda folder, images: [images[0], folder / "1.png", Image.open(folder / "2.png"), *images[3:]],
            lambda folder, images: [(folder / f"{i}.png").read_bytes() for i in range(5)],
            lambda folder, images: [bytearray((folder / "0.png").read_bytes()), *images[1:]],
        ],
    )
    def test_every_form_of_input_gives_the_same_features(self, encoder, folder, images, give):
        assert torch.equal(encoder(give(folder, images)).features, encoder(images).features)

    @pytest.mark.parametrize(
        "give",
        [
            lambda folder, images: images[2],
            lambda folder, images: images[2:3],
            lambda folder, images: folder / "2.png",
            lambda folder, images: str(folder / "2.png"),
            lambda folder, images: Image.open(folder / "2.png"),
            lambda folder, images: (folder / "2.png").read_bytes(),
            lambda folder, images: bytearray((folder / "2.png").read_bytes()),
            lambda folder, images: memoryview((folder / "2.png").read_bytes()),
        ],
    )
    def test_a_single_image_is_one_row(self, encoder, folder, images, give):
        features, mean, scale = encoder(give(folder, images))
        assert (features.shape, mean.shape, scale.shape) == ((1, 64), (1, 24), (1, 24))
        torch.testing.assert_close(features[0], encoder(images).features[2])  # a batch of another size

    def test_sizes_may_differ(self, encoder, images):
        several = [images[0], images[1, :, :20], images[2, :, :, :33]]
        alone = torch.cat([encoder.features(picture) for picture in several])
        torch.testing.assert_close(encoder.features(several), alone)

    @pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "I;16"])
    def test_modes_of_pillow_are_read_like_their_files(self, encoder, images, tmp_path, mode):
        picture = Image.fromarray(images[0].permute(1, 2, 0).numpy())
        if mode == "I;16":
            picture = Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40)
        else:
            picture = picture.convert(mode)
        if mode == "P":
            picture.info["transparency"] = bytes([255, 0] * 128)
        picture.save(tmp_path / "x.png")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(encoder.features(picture), encoder.features(tmp_path / "x.png"))

    def test_exif_orientation_of_pillow_images(self, encoder, images, tmp_path):
        picture = Image.fromarray(images[0, :, :24].permute(1, 2, 0).numpy())
        exif = Image.Exif()
        exif[0x0112] = 6
        picture.save(tmp_path / "turned.png", exif=exif)
        with Image.open(tmp_path / "turned.png") as opened:
            found = encoder.features(opened)
        assert torch.equal(found, encoder.features(tmp_path / "turned.png"))
        assert torch.equal(found, encoder.features(images[0, :, :24].rot90(-1, (1, 2))))

    @pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.tiff"])
    def test_bytes_are_read_like_their_file(self, encoder, tmp_path, name):
        """Rotated, large, and of each decoder: a JPEG of this size is decoded at a reduced size."""
        random = torch.Generator().manual_seed(0)
        picture = torch.randint(0, 256, (1700, 1100, 3), dtype=torch.uint8, generator=random)
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(picture.numpy()).save(tmp_path / name, exif=exif)
        data = (tmp_path / name).read_bytes()
        assert torch.equal(encoder.features([data, data])[0], encoder.features([tmp_path / name] * 2)[0])

    def test_large_images_are_reduced_in_the_same_way(self, encoder, tmp_path):
        random = torch.Generator().manual_seed(0)
        large = torch.randint(0, 256, (3, 600, 900), dtype=torch.uint8, generator=random)
        Image.fromarray(large.permute(1, 2, 0).numpy()).save(tmp_path / "large.png")
        assert isinstance(open_images(large), Handful)
        assert torch.equal(encoder.features(large), encoder.features(tmp_path / "large.png"))

    def test_a_string_that_starts_like_a_spec_is_a_spec(self, folder, monkeypatch):
        monkeypatch.chdir(folder.parent)
        folder.rename("photos")
        assert len(open_images("photos@test")) == 840
        assert len(open_images("photos")) == 3360
        assert len(open_images("./photos")) == len(open_images(folder.parent / "photos")) == 5

    def test_uncertainty_and_ood_score_accept_the_same_forms(self, encoder, folder, images, belonging):
        encoder.fit_reference(belonging)
        for function in (encoder.uncertainty, encoder.ood_score):
            assert torch.equal(function(sorted(folder.iterdir())), function(images))

    def test_rows_do_not_depend_on_the_batch(self, encoder):
        pictures = coloured(9)
        few = untrained(encoder.config)
        few.batch_size = 4
        for one, other in zip(few(pictures), encoder(pictures), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)  # sums in another order
        for one, other in zip(few.views(pictures, count=3), encoder.views(pictures, count=3), strict=True):
            torch.testing.assert_close(one.mean, other.mean, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("give", "named"),
    [
        (lambda folder, images: "", "empty"),
        (lambda folder, images: ["0.png", ""], r"1 .*empty"),
        (lambda folder, images: set(folder.iterdir()), r"set; .*list"),
        (lambda folder, images: frozenset(folder.iterdir()), "frozenset"),
        (lambda folder, images: {"a": folder / "0.png"}, r"dict; .*\.values\(\)"),
        (lambda folder, images: io.BytesIO(b"x"), r"BytesIO.*\.read\(\)"),
        (lambda folder, images: [io.BytesIO(b"x")], r"0 .*BytesIO.*\.read\(\)"),
        (lambda folder, images: b"", r"0 .*empty"),
        (lambda folder, images: [(folder / "0.png").read_bytes(), b"no image"], "1 cannot be read: .*known format"),
        (lambda folder, images: [images[0], (folder / "0.png").read_bytes()[:200]], "1 cannot be read: "),
        (lambda folder, images: "nowhere.png", r"nowhere\.png"),
        (lambda folder, images: [folder / "9.png"], r"9\.png cannot be read: No such file"),
        (lambda folder, images: [folder], "cannot be read: Is a directory"),
        (lambda folder, images: images.float(), r"torch.float32 \(5, 3, 40, 40\).*uint8 \(N, 3, H, W\)"),
        (lambda folder, images: images[:0], "1 or more"),
        (lambda folder, images: images[:, :1], r"uint8 \(N, 3, H, W\)"),
        (lambda folder, images: [images], r"0 .*torch.uint8 \(5, 3, 40, 40\)"),
        (lambda folder, images: images.numpy(), r"uint8 \(5, 3, 40, 40\).*uint8 \(N, H, W, 3\)"),
        (lambda folder, images: images[0].permute(1, 2, 0).numpy() / 255, r"float64 \(40, 40, 3\)"),
        (lambda folder, images: [np.zeros((8, 8), np.uint8)], r"0 .*uint8 \(8, 8\)"),
        (lambda folder, images: np.zeros((0, 8, 8, 3), np.uint8), "1 or more"),
        (lambda folder, images: 3, "int; .*uint8 tensors"),
        (lambda folder, images: [], "empty"),
        (lambda folder, images: Image.new("F", (8, 8)), "0 cannot be read: 32-bit"),
        (lambda folder, images: coloured(3).subset(torch.tensor([], dtype=torch.int64)), "no images"),
    ],
)
def test_wrong_inputs_are_named(encoder, folder, images, give, named):
    with pytest.raises(ProsminError, match=named):
        encoder(give(folder, images))


def test_a_damaged_file_is_named_with_its_reason(encoder, folder):
    (folder / "3.png").write_bytes((folder / "3.png").read_bytes()[:200])
    for given in (folder, [folder / "0.png", folder / "3.png"], str(folder / "3.png")):
        with pytest.raises(ProsminError, match=r"3\.png cannot be read: .+"):
            encoder(given)


def test_the_values_of_a_dictionary_and_the_current_folder_are_allowed(encoder, folder, monkeypatch):
    monkeypatch.chdir(folder)
    paths = sorted(folder.iterdir())
    named = {path.name: path for path in paths}
    assert torch.equal(encoder.features(named.values()), encoder.features(paths))
    assert len(encoder.features(".")) == 5


def test_an_array_is_copied(encoder, images):
    """Arrays may be flipped views or read-only, and may change afterwards."""
    array = images.permute(0, 2, 3, 1).numpy()
    turned = array[:, ::-1, ::-1]
    turned.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(open_images(turned).images, images.flip(2, 3))
