"""Decoding: readable images equal those of Pillow, others have a reason."""

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from prosmin.data import decode as module
from prosmin.data.decode import PictureError, _fits_nvjpeg, bounded, decode, decode_batch, decode_bounded, read_header

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)
# Smooth, as a JPEG can store it, so that nothing depends on how a decoder rounds noise.
SMOOTH = np.stack(np.meshgrid(np.linspace(0, 255, 30), np.linspace(0, 200, 20)), -1).astype(np.uint8)
SMOOTH = np.concatenate([SMOOTH, SMOOTH[..., :1] // 2], -1)


def encode(image: Image.Image, format: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def reference(data: bytes) -> torch.Tensor:
    """The same image by Pillow."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    return torch.from_numpy(np.array(image.convert("RGBA").convert("RGB"))).permute(2, 0, 1)


def rgb() -> Image.Image:
    return Image.fromarray(PIXELS)


def smooth() -> Image.Image:
    return Image.fromarray(SMOOTH)


def with_alpha() -> Image.Image:
    image = rgb()
    image.putalpha(Image.fromarray(RNG.integers(0, 256, (20, 30), dtype=np.uint8)))
    return image


GOOD = {
    "jpeg": lambda: encode(smooth(), "JPEG", quality=95),
    "progressive jpeg": lambda: encode(smooth(), "JPEG", progressive=True),
    "greyscale jpeg": lambda: encode(smooth().convert("L"), "JPEG"),
    "cmyk jpeg": lambda: encode(smooth().convert("CMYK"), "JPEG"),
    "png": lambda: encode(rgb(), "PNG"),
    "greyscale png": lambda: encode(rgb().convert("L"), "PNG"),
    "black-and-white png": lambda: encode(rgb().convert("1"), "PNG"),
    "palette png": lambda: encode(rgb().convert("P"), "PNG"),
    "palette png, one colour transparent": lambda: encode(rgb().convert("P"), "PNG", transparency=3),
    "palette gif, one colour transparent": lambda: encode(rgb().convert("P"), "GIF", transparency=3),
    "png with alpha": lambda: encode(with_alpha(), "PNG"),
    "grey png with alpha": lambda: encode(with_alpha().convert("LA"), "PNG"),
    "png with a colour profile": lambda: encode(rgb(), "PNG", icc_profile=b"no profile at all"),
    "webp": lambda: encode(rgb(), "WEBP", lossless=True),
    "webp, lossy": lambda: encode(smooth(), "WEBP"),
    "webp with alpha": lambda: encode(with_alpha(), "WEBP", lossless=True, exact=True),
    "bmp": lambda: encode(rgb(), "BMP"),
    "tiff": lambda: encode(rgb(), "TIFF"),
    "1 x 1 jpeg": lambda: encode(rgb().crop((0, 0, 1, 1)), "JPEG"),
    "1 x 1 png": lambda: encode(rgb().crop((0, 0, 1, 1)), "PNG"),
    **{f"jpeg turned {i}": lambda i=i: encode(smooth(), "JPEG", exif=exif(i)) for i in range(1, 9)},
    "png turned": lambda: encode(rgb(), "PNG", exif=exif(6)),
    "webp turned": lambda: encode(rgb(), "WEBP", lossless=True, exif=exif(8)),
    "tiff turned": lambda: encode(rgb(), "TIFF", exif=exif(3)),
}


@pytest.mark.parametrize("name", GOOD)
def test_readable_images_equal_pillow(name, capfd):
    data = GOOD[name]()
    picture = decode(data)
    assert picture.dtype == torch.uint8
    assert torch.equal(picture, reference(data))
    assert capfd.readouterr().err == ""  # libpng likes to print


def test_an_image_is_rotated_by_its_exif_orientation():
    # Orientation 6: the camera was turned left, so the first stored column is the first row.
    upright = decode(encode(rgb(), "PNG", exif=exif(6)))
    assert torch.equal(upright, torch.from_numpy(np.rot90(PIXELS, -1).copy()).permute(2, 0, 1))


def test_alpha_is_dropped():
    assert torch.equal(decode(encode(with_alpha(), "PNG")), torch.from_numpy(PIXELS).permute(2, 0, 1))


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP"])
def test_first_frame_of_an_animation(format):
    frames = [Image.new("RGB", (8, 6), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    options = {"lossless": True} if format == "WEBP" else {}
    picture = decode(encode(frames[0], format, save_all=True, append_images=frames[1:], **options))
    assert picture.shape == (3, 6, 8)
    assert picture[:, 0, 0].tolist() == [255, 0, 0]


def png16(values: np.ndarray) -> bytes:
    """A 16-bit PNG, grey (H, W) or RGB (H, W, 3), written by hand: Pillow cannot write the latter."""
    height, width = values.shape[:2]

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, 2 if values.ndim == 3 else 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*c) for c in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    )


@pytest.mark.parametrize("shape", [(20, 30), (20, 30, 3)])
def test_sixteen_bits_are_scaled(shape):
    values = RNG.integers(0, 65536, shape).astype(np.uint16)
    values.flat[0], values.flat[1] = 0, 65535
    expected = torch.from_numpy(np.round(values / 257.0).astype(np.uint8))
    expected = expected.permute(2, 0, 1) if len(shape) == 3 else expected.expand(3, -1, -1)
    assert torch.equal(decode(png16(values)), expected)


def test_sixteen_bit_tiff_is_scaled():
    values = np.array([[0, 128, 257, 65535]], dtype=np.uint16)
    assert decode(encode(Image.fromarray(values), "TIFF"))[0].tolist() == [[0, 0, 1, 255]]


@pytest.mark.parametrize("white", [65535, 1023])
def test_grey_portable_pixels_of_more_than_eight_bits_are_scaled(white):
    values = np.array([[0, white // 2, white]], dtype=">u2")
    assert decode(b"P5 3 1 %d\n" % white + values.tobytes()).tolist() == [[[0, 127, 255]]] * 3
    assert decode(b"P2 3 1 %d\n0 %d %d\n" % (white, white // 2, white)).tolist() == [[[0, 127, 255]]] * 3


def bomb(kind: str) -> bytes:
    """A file of some bytes that claims to be an image of gigabytes."""
    if kind == "png":
        return png16(np.zeros((1, 1)))[:16] + struct.pack(">II", 60_000, 60_000) + b"\x08\x02\0\0\0" + b"\0" * 64
    if kind == "jpeg":
        data = bytearray(encode(smooth(), "JPEG"))
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", 60_000, 60_000)
        return bytes(data)
    if kind == "gif":
        return b"GIF89a" + struct.pack("<HH", 60_000, 60_000) + encode(smooth(), "GIF")[10:]
    if kind == "webp":
        body = b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + (16_000).to_bytes(3, "little") * 2 + b"\0" * 20
        return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body
    data = bytearray(encode(smooth(), "BMP"))
    data[18:26] = struct.pack("<ii", 9_400, 9_500)  # between our limit and Pillow's error: there it only warns
    return bytes(data)


@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "webp", "bmp"])
@pytest.mark.parametrize("decoder", [decode, decode_bounded])
@pytest.mark.parametrize("action", ["error", "ignore"])
def test_decompression_bombs_are_refused(kind, decoder, action, monkeypatch):
    data = bomb(kind)
    monkeypatch.setattr(module, "_operator", lambda name: pytest.fail("the decoder was called"))
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("the decoder was called"))
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        with pytest.raises(PictureError, match="above the limit of 89,000,000"):
            decoder(data)


BAD = {
    "truncated jpeg": lambda: encode(rgb().resize((200, 150)), "JPEG")[:3000],
    "jpeg cut in its header": lambda: encode(rgb(), "JPEG")[:30],
    "truncated png": lambda: encode(rgb(), "PNG")[:500],
    "truncated webp": lambda: encode(rgb(), "WEBP")[:100],
    "truncated gif": lambda: encode(rgb(), "GIF")[:40],
    "zero bytes": lambda: b"",
    "text": lambda: b"This is not an image.\n",
    "32-bit tiff": lambda: encode(Image.fromarray(np.ones((4, 4), dtype=np.float32)), "TIFF"),
}


@pytest.mark.parametrize("name", BAD)
def test_unreadable_images_have_a_reason(name):
    for decoder in (decode, decode_bounded):
        with pytest.raises(PictureError) as caught:
            decoder(BAD[name]())
        assert str(caught.value)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]), st.data())
def test_damaged_files_never_raise_anything_else(format, data):
    content = bytearray(encode(smooth(), format))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow speaks of damaged EXIF data
            picture = decode(bytes(content))
    except PictureError:
        return
    assert picture.dtype == torch.uint8
    assert picture.shape[0] == 3


@pytest.mark.parametrize(
    ("format", "kind"), [("JPEG", "jpeg"), ("PNG", "png"), ("WEBP", "webp"), ("GIF", ""), ("BMP", "")]
)
def test_header_has_format_and_size(format, kind):
    for options in ({}, {"lossless": True}, {"exif": exif(6)}) if format == "WEBP" else ({},):
        header = read_header(encode(rgb(), format, **options))
        assert header.kind == kind
        assert (header.height, header.width) == ((20, 30) if kind else (0, 0))


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((512, 400), (400, 512)),
        ((700, 700), (512, 512)),
        ((1030, 600), (447, 768)),
        ((2400, 1600), (512, 768)),
        ((4000, 300), (58, 768)),
        ((2000, 1), (1, 768)),
    ],
)
def test_large_images_are_bounded(format, size, expected):
    ramp = np.linspace(0, 255, size[0]).astype(np.uint8)  # grey rises from left to right
    image = Image.fromarray(np.broadcast_to(ramp, (size[1], size[0])).copy()).convert("RGB")
    picture = decode_bounded(encode(image, format))
    assert picture.shape == (3, *expected)
    # Reduced means averaged: the ramp is still a ramp. 3 grey levels for the JPEG, 1 for rounding.
    assert (picture[0].float() - torch.linspace(0, 255, expected[1])).abs().max() <= 4


def test_large_rotated_jpeg_is_rotated_and_bounded():
    image = Image.new("RGB", (3000, 2000), (255, 0, 0))
    image.paste((0, 0, 255), (0, 0, 3000, 1000))  # stored: blue above red
    picture = decode_bounded(encode(image, "JPEG", exif=exif(6)))  # shown: blue to the right of red
    assert picture.shape == (3, 768, 512)
    assert picture[2, :, 300:].float().mean() > 250
    assert picture[0, :, :200].float().mean() > 250


def test_small_images_keep_every_pixel():
    picture = torch.from_numpy(PIXELS).permute(2, 0, 1)
    assert bounded(picture) is picture


def test_without_the_operators_pillow_decodes_everything(monkeypatch):
    expected = {name: decode(make()) for name, make in GOOD.items()}
    monkeypatch.setattr(module, "_operator", lambda name: None)
    for name, make in GOOD.items():
        assert torch.equal(decode(make()), expected[name]), name


def test_batch_keeps_order_and_reasons():
    results = decode_batch([GOOD["png"](), b"text", GOOD["bmp"]()], torch.device("cpu"))
    assert torch.equal(results[0], reference(GOOD["png"]()))
    assert isinstance(results[1], PictureError)
    assert torch.equal(results[2], reference(GOOD["bmp"]()))


@pytest.mark.parametrize(
    ("data", "fits"),
    [
        (GOOD["jpeg"](), True),
        (GOOD["greyscale jpeg"](), True),
        (GOOD["cmyk jpeg"](), False),
        (GOOD["jpeg turned 6"](), False),
        (GOOD["png"](), False),
        (BAD["truncated jpeg"](), False),  # nvJPEG would fill the rest with grey
    ],
)
def test_which_files_nvjpeg_decodes(data, fits):
    assert _fits_nvjpeg(data) is fits


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nvjpeg_equals_the_cpu():
    names = ["jpeg", "greyscale jpeg", "cmyk jpeg", "jpeg turned 6", "png", "progressive jpeg"]
    data = [GOOD[name]() for name in names]
    for item, result in zip(data, decode_batch(data, torch.device("cuda")), strict=True):
        # It repeats a value of the halved colour planes over two pixels where libjpeg interpolates: half of what the
        # colour changes over two pixels, 17 grey levels in this image.
        assert (result.cpu().int() - decode(item).int()).abs().max() <= 9
    with_bad = decode_batch([data[0], BAD["truncated jpeg"](), data[4]], torch.device("cuda"))
    assert isinstance(with_bad[1], PictureError)
    assert with_bad[0].shape == (3, 20, 30)
