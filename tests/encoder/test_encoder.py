"""The encoder a user loads: what it accepts and refuses, its reference, and saving and loading."""

import io
import json
import multiprocessing
import pickle
import threading
import warnings

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from coloured import coloured
from prosmin.data.image_sets import load_pictures
from prosmin.data.inputs import Handful, open_images
from prosmin.encoder import Encoder, load, untrained
from prosmin.encoder.encoder import _suitable_batch
from prosmin.encoder.file import read_card
from prosmin.encoder.foreign import is_foreign
from prosmin.encoder.neighbours import nearest
from prosmin.errors import ProsminError
from prosmin.export import export
from prosmin.files import file_hash
from tiny_methods import METHODS, tiny_method


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return untrained(tiny_method("prosmin"))


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return coloured(5, side=40).images


@pytest.fixture(scope="module")
def belonging() -> torch.Tensor:
    """Enough for a reference."""
    return coloured(12, seed=1, side=40).images


@pytest.fixture
def float64_default():
    """As in a program that computes in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def folder(tmp_path, images):
    """The five images as PNG files in a folder."""
    (tmp_path / "five").mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / "five" / f"{i}.png")
    return tmp_path / "five"


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


class TestReference:
    def test_an_image_of_the_reference_is_not_its_own_neighbour(self, tmp_path, images, belonging):
        """In whatever form it comes, also after loading; a duplicate in the reference is another image."""
        encoder = untrained(tiny_method("prosmin")).fit_reference(belonging)
        features = encoder.features(belonging)
        similarities, _ = nearest(features, features, 2, exclude_self=True)
        expected = (2 - 2 * similarities[:, -1]).sqrt()
        torch.testing.assert_close(encoder.ood_score(belonging), expected, rtol=1e-3, atol=1e-4)
        Image.fromarray(belonging[3].permute(1, 2, 0).numpy()).save(tmp_path / "x.png")
        for place in (encoder, load(encoder.save(tmp_path / "saved"), device="cpu")):
            torch.testing.assert_close(place.ood_score(tmp_path / "x.png")[0], expected[3], rtol=1e-3, atol=1e-4)
        twice = encoder.fit_reference(belonging.repeat(3, 1, 1, 1)).ood_score(belonging)
        torch.testing.assert_close(twice, torch.zeros(12), rtol=0, atol=1e-3)  # two duplicates remain, and k is 2
        similarities, _ = nearest(features, encoder.features(images), 2)
        new = encoder.fit_reference(belonging).ood_score(images)
        torch.testing.assert_close(new, (2 - 2 * similarities[:, -1]).sqrt(), rtol=1e-3, atol=1e-4)

    def test_a_few_images_may_be_unreadable(self, folder):
        (folder / "3.png").write_text("no image")
        for i in range(5, 11):
            (folder / f"{i}.png").write_bytes((folder / "0.png").read_bytes())
        generous = untrained(tiny_method("prosmin", data__max_bad="0.2"))
        generous.fit_reference(folder)
        assert generous.ood_score(folder / "0.png").shape == (1,)
        with pytest.raises(ProsminError, match=r"1 of 11[^$]*0\.01[^$]*3\.png"):
            untrained(tiny_method("prosmin")).fit_reference(folder)

    def test_few_images_are_refused_and_the_reference_before_stays(self, belonging, folder):
        encoder = untrained(tiny_method("prosmin")).fit_reference(belonging[:10])
        expected = encoder.ood_score(belonging)
        for few, count in ((belonging[:9], 9), (folder, 5)):
            with pytest.raises(ProsminError, match=rf"{count} readable images; allowed: 10 or more"):
                encoder.fit_reference(few)
        assert torch.equal(encoder.ood_score(belonging), expected)


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


@pytest.mark.parametrize("value", [0, -1, "a", 2.5, None, True])
def test_counts_are_integers(images, value):
    encoder = untrained(tiny_method("prosmin"))
    with pytest.raises(ProsminError, match=rf"batch size is {value!r}; allowed: .*1 or more"):
        encoder.batch_size = value
    if value is not True:
        with pytest.raises(ProsminError, match=rf"views is {value!r}; allowed: .*1 or more"):
            encoder.views(images, count=value)
    encoder.batch_size = np.int64(3)
    assert encoder.batch_size == 3


@pytest.mark.parametrize("device", ["gpu", f"cuda:{torch.cuda.device_count()}", None])
def test_an_unknown_device(encoder, device):
    with pytest.raises(ProsminError, match=rf"device '{device}'.*: cpu"):
        encoder.to(device)
    assert encoder.device.type == "cpu"


def test_load_takes_only_paths_and_names():
    with pytest.raises(ProsminError, match=r"NoneType; allowed: "):
        load(None)


def test_an_array_is_copied(encoder, images):
    """Arrays may be flipped views or read-only, and may change afterwards."""
    array = images.permute(0, 2, 3, 1).numpy()
    turned = array[:, ::-1, ::-1]
    turned.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(open_images(turned).images, images.flip(2, 3))


def test_repr(encoder, tmp_path):
    text = "Encoder(method: prosmin, backbone: resnet8_cifar, step: 0, device: cpu, features: 64)"
    assert repr(encoder) == text
    card = json.loads((encoder.save(tmp_path / "saved") / "encoder.json").read_text())
    (tmp_path / "saved" / "encoder.json").write_text(json.dumps(card | {"step": 7}))
    assert repr(load(tmp_path / "saved", device="cpu")) == text.replace("step: 0", "step: 7")
    save_file(timm.create_model("test_vit", num_classes=0).state_dict(), tmp_path / "weights.safetensors")
    other = repr(load(f"timm:test_vit@{tmp_path / 'weights.safetensors'}", device="cpu"))
    assert other.startswith("Encoder(method: none of ours, backbone: test_vit, step: unknown, ")


@pytest.mark.parametrize("method", METHODS)
def test_features_do_not_need_the_heads(method, images, monkeypatch):
    encoder = untrained(tiny_method(method))
    expected = encoder(images).features
    monkeypatch.setattr(encoder.method, "encode", None)
    assert torch.equal(encoder.features(images), expected)
    assert encoder.fit_reference(images.repeat(2, 1, 1, 1)).ood_score(images).shape == (5,)


def test_bf16(encoder, images):
    narrow = untrained(encoder.config).to("cpu", precision="bf16-mixed")
    found, expected = narrow.features(images), encoder.features(images)
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)  # eight bits of mantissa through eight layers
    with pytest.raises(ProsminError, match=r"'16-true'.*32-true, bf16-mixed"):
        encoder.to("cpu", precision="16-true")


def test_results_can_be_trained_on_and_changed_in_place(encoder, images):
    """Inference tensors would refuse both."""
    found = [
        encoder.features(images),
        encoder.uncertainty(images),
        *encoder(images),
        *encoder.views(images, count=2)[0],
    ]
    for values in found:
        weight = torch.ones(values.shape[-1], requires_grad=True)
        (values * weight).square().mean().backward()
        assert weight.grad is not None
        values -= values.mean()


def test_batch_size_follows_the_view():
    sizes = [_suitable_batch(3 * side**2, torch.device("cpu")) for side in (32, 96, 224, 1024)]
    assert sizes == [128, 16, 16, 16]


class TestFolder:
    def test_loading_restores_encoder_and_reference(self, encoder, images, tmp_path):
        others = coloured(30, seed=1, side=40).images
        expected = encoder.fit_reference(others).ood_score(images)
        folder = encoder.save(tmp_path / "new" / "saved")
        names = {"encoder.json", "encoder.safetensors", "reference.safetensors"}
        assert {path.name for path in folder.iterdir()} == names
        for place in (folder, str(folder), folder / "encoder.safetensors"):
            again = load(place).to("cpu")
            assert torch.equal(again.ood_score(images), expected)
            for one, other in zip(again(images), encoder(images), strict=True):
                assert torch.equal(one, other)
        assert torch.equal(again.untrained().features(images), encoder.features(images))  # this one was never trained

    def test_saving_again_replaces_only_the_reference(self, tmp_path, images, belonging):
        encoder = untrained(tiny_method("prosmin"))
        folder = encoder.save(tmp_path)
        assert not (folder / "reference.safetensors").exists()
        with pytest.raises(ProsminError, match=r"^ood_score needs a reference: .*fit_reference"):
            load(folder).ood_score(images)
        before = file_hash(folder / "encoder.safetensors")
        expected = load(folder).fit_reference(belonging)
        expected.save(folder)
        assert file_hash(folder / "encoder.safetensors") == before
        assert torch.equal(load(folder).ood_score(images), expected.ood_score(images))

    def test_the_card_has_the_precision_of_the_file(self, tmp_path, images, belonging):
        """float16 stays float16, also beside a new reference, as long as every number fits float16."""
        export(
            untrained(tiny_method("prosmin")).save(tmp_path / "wide"),
            tmp_path / "half",
            format="safetensors",
            half=True,
        )
        half = load(tmp_path / "half")
        before = file_hash(tmp_path / "half" / "encoder.safetensors")
        half.fit_reference(belonging).save(tmp_path / "half")  # the same encoder
        half.save(tmp_path / "copy")
        assert file_hash(tmp_path / "copy" / "encoder.safetensors") == before == load(tmp_path / "copy").card["hash"]
        assert load(tmp_path / "copy").card == read_card(tmp_path / "half")
        assert torch.equal(load(tmp_path / "half").ood_score(images), half.ood_score(images))

        matrix = _matrix(half.method.state_dict())
        half.method.get_parameter(matrix)[0, 0] = 1 / 3
        half.save(tmp_path / "changed")
        tensors = load_file(tmp_path / "changed" / "encoder.safetensors")
        assert {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()} == {torch.float32}
        assert float(tensors[matrix][0, 0]) == pytest.approx(1 / 3, rel=1e-7)  # float16 would leave 0.3333
        assert not {"precision", "deviation"} & read_card(tmp_path / "changed").keys()

        narrow = untrained(tiny_method("prosmin"))
        narrow.method.bfloat16()
        assert read_card(narrow.save(tmp_path / "narrow"))["precision"] == "bfloat16"
        assert "precision" not in read_card(tmp_path / "wide")

    def test_another_encoder_is_not_overwritten(self, encoder, tmp_path):
        encoder.save(tmp_path)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(ProsminError, match="another encoder"):
            untrained(tiny_method("prosmin", training__seed="1")).save(tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_a_reference_of_other_weights_is_not_used_but_named(self, tmp_path, images, belonging):
        one, other = (untrained(tiny_method("prosmin", training__seed=seed)) for seed in "01")
        one.fit_reference(belonging).save(tmp_path / "one")
        other.save(tmp_path / "other")
        (tmp_path / "one" / "reference.safetensors").rename(tmp_path / "other" / "reference.safetensors")
        with pytest.raises(ProsminError, match=r"other/reference\.safetensors .*another encoder: .*fit_reference"):
            load(tmp_path / "other").ood_score(images)
        assert load(tmp_path / "other").fit_reference(belonging).ood_score(images).shape == (5,)

    def test_a_changed_reference_is_refused(self, encoder, tmp_path, belonging):
        encoder.fit_reference(belonging).save(tmp_path)
        file = tmp_path / "reference.safetensors"
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(ProsminError, match=r"reference\.safetensors was changed"):
            load(tmp_path)
        file.write_bytes(whole[:50])
        with pytest.raises(ProsminError, match=r"reference\.safetensors cannot be loaded"):
            load(tmp_path)

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda tensors, name: tensors.update({name: tensors[name][:-1]}), r"is \(31, \d+\), not \(32, \d+\)\."),
            (lambda tensors, name: tensors.pop(name), "is missing"),
            (lambda tensors, name: tensors.update(more=torch.zeros(1)), "more is not part"),
        ],
    )
    def test_weights_that_do_not_fit_the_card_are_refused(self, encoder, tmp_path, change, match):
        encoder.save(tmp_path)
        tensors = load_file(tmp_path / "encoder.safetensors")
        change(tensors, _matrix(tensors))
        save_file(tensors, tmp_path / "encoder.safetensors")
        with pytest.raises(ProsminError, match=r"encoder\.safetensors .*changed"):
            load(tmp_path)
        card = read_card(tmp_path) | {"hash": file_hash(tmp_path / "encoder.safetensors")}
        (tmp_path / "encoder.json").write_text(json.dumps(card))
        with pytest.raises(ProsminError, match=match) as refusal:
            load(tmp_path)
        assert "\n" not in str(refusal.value)

    @pytest.mark.parametrize(
        ("card", "match"),
        [
            ("{", "cannot be read"),
            ("[]", "not the card"),
            ('{"hash": "x"}', "not the card"),
            ('{"hash": "x", "encoder": "x", "format": 2}', r"format 2; .*up to 1"),
        ],
    )
    def test_a_damaged_card_is_refused(self, encoder, tmp_path, card, match):
        encoder.save(tmp_path)
        (tmp_path / "encoder.json").write_text(card)
        with pytest.raises(ProsminError, match=match):
            load(tmp_path)

    def test_other_paths_are_refused(self, tmp_path):
        with pytest.raises(ProsminError, match=r"nowhere is not a run folder.*Encoder\.save"):
            load(tmp_path / "nowhere")
        (tmp_path / "x.pth").write_bytes(b"")
        with pytest.raises(ProsminError, match=r"timm:NAME@.*x\.pth"):
            load(tmp_path / "x.pth")
        (tmp_path / "encoder.safetensors").write_bytes(b"")
        with pytest.raises(ProsminError, match=r"encoder\.safetensors but not its card encoder\.json"):
            load(tmp_path / "encoder.safetensors")

    def test_a_folder_without_a_card(self, encoder, tmp_path):
        """Continuing to train is right for an unfinished run, and wrong for any other folder."""
        begun = tmp_path / "runs" / "begun"
        begun.mkdir(parents=True)
        (begun / "config.yaml").write_text("")
        with pytest.raises(ProsminError, match=r"begun has not finished.*`prosmin pretrain --out .*begun`"):
            load(begun)
        encoder.save(tmp_path / "runs" / "done")
        (tmp_path / "runs" / "notes").mkdir()
        with pytest.raises(ProsminError, match=r"runs is not a run folder.*one of them: .*runs/begun, .*runs/done\.$"):
            load(tmp_path / "runs")
        (tmp_path / "runs" / "notes" / "a.txt").write_text("")
        with pytest.raises(ProsminError, match=r"notes is not a run folder.*encoder\.json(?!.*continues)"):
            load(tmp_path / "runs" / "notes")

    def test_a_saved_encoder_of_timm_does_not_need_its_file(self, images, belonging, tmp_path):
        file = timm_weights(tmp_path)
        encoder = load(f"timm:test_vit@{file}").fit_reference(belonging)
        assert is_foreign(encoder.card["encoder"])
        expected = encoder(images), encoder.ood_score(images), encoder.untrained().features(images)
        folder = encoder.save(tmp_path / "saved")
        file.unlink()
        again = load(folder)
        assert again(images).scale is None
        assert torch.equal(again(images).features, expected[0].features)
        assert torch.equal(again.ood_score(images), expected[1])
        assert torch.equal(again.untrained().features(images), expected[2])
        assert again.config.views == encoder.config.views


def timm_weights(folder):
    """A file of random weights of timm's smallest ViT."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = timm.create_model("test_vit", num_classes=0)
    save_file(network.state_dict(), folder / "weights.safetensors")
    return folder / "weights.safetensors"


@pytest.fixture(scope="module")
def places(tmp_path_factory, belonging):
    """A run, an encoder of timm, and each of them saved with a reference."""
    root = tmp_path_factory.mktemp("places")
    places = [untrained(tiny_method("prosmin")).save(root / "run"), f"timm:test_vit@{timm_weights(root)}"]
    return [*places, *(load(at).fit_reference(belonging).save(root / f"saved-{i}") for i, at in enumerate(places))]


class TestInPrograms:
    def test_it_can_be_pickled(self, places, images):
        for kind in (*map(load, places), untrained(tiny_method("dino"))):
            again = pickle.loads(pickle.dumps(kind))
            assert torch.equal(again.features(images), kind.features(images))
            assert torch.equal(again.untrained().features(images), kind.untrained().features(images))
            assert (again.card, again.config) == (kind.card, kind.config)
        for place in places[2:]:
            kind = load(place)
            assert torch.equal(pickle.loads(pickle.dumps(kind)).ood_score(images), kind.ood_score(images))

    def test_it_can_be_sent_to_a_spawned_process(self, encoder, images):
        with multiprocessing.get_context("spawn").Pool(1, torch.set_num_threads, (1,)) as pool:
            found = pool.apply(encoder.features, (images.numpy().transpose(0, 2, 3, 1),))
        torch.testing.assert_close(found, encoder.features(images))

    @pytest.mark.parametrize("at", range(4))
    def test_the_default_dtype_does_not_matter(self, places, images, belonging, at, float64_default):
        def numbers():
            kind = load(places[at], device="cpu")
            yield from (kind(images).mean, kind.features(images), kind.uncertainty(images))
            yield from (kind.untrained().features(images), kind.views(images, count=1)[0].mean)
            yield kind.fit_reference(belonging).ood_score(images)

        found = list(numbers())
        assert torch.get_default_dtype() == torch.float64
        torch.set_default_dtype(torch.float32)
        for one, other in zip(found, numbers(), strict=True):
            assert one.dtype == torch.float32
            assert torch.equal(one, other)

    def test_threads_leave_the_default_dtype_as_it_was(self, encoder, images, float64_default):
        """The first thread to leave must not change it for the others."""
        expected, failed = encoder.features(images), []

        def work():
            try:
                for _ in range(10):
                    assert torch.equal(encoder.features(images), expected)
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert torch.get_default_dtype() == torch.float64


def _matrix(tensors: dict[str, torch.Tensor]) -> str:
    """A matrix with 32 rows, whatever the network calls it."""
    return next(name for name, tensor in tensors.items() if tensor.ndim == 2 and len(tensor) == 32)
