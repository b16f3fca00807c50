"""The contact sheet shows the views that training makes with the same seed, step and positions."""

import numpy as np
import pytest
import torch
from PIL import Image

from prosmin import config as configs
from prosmin.data import views as view_making
from prosmin.data.image_sets import load_pictures
from prosmin.data.order import Order
from prosmin.data.views import make_views
from prosmin.errors import ProsminError
from prosmin.preview import PAPER, fitted, lay_out, text_width, write_views
from prosmin.training.pretrain import pretrain


def resolve(**changes):
    fields = {"heads.dim": "2"} | {name.replace("__", "."): value for name, value in changes.items()}  # small batches
    return configs.resolve(recipe="demo", overrides=fields)


def write_pictures(path):
    """Twelve images of many shapes, so that a batch is padded."""
    draw = np.random.default_rng(0)
    for i in range(12):
        height, width = draw.integers(20, 200, 2)
        pixels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path / f"{i:02d}.png")
    return f"folder:{path}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("pictures"))


def cell(path, config, row, column):
    """The pixels of one view on the sheet; each square that shows a pixel must have one colour."""
    layout = lay_out(config.views)
    left, top = layout.corner(row, column)
    side = layout.columns[column].side
    shown = np.array(Image.open(path).convert("RGB"))[top : top + side, left : left + side]
    pixels = shown[:: layout.factor, :: layout.factor]
    assert np.array_equal(pixels.repeat(layout.factor, 0).repeat(layout.factor, 1), shown)
    return pixels


def in_colour(view, config):
    """A normalised view (3, h, w) as (h, w, 3) levels: the reference, in float64 with numpy."""
    mean, std = (np.array(values)[:, None, None] for values in (config.views.mean, config.views.std))
    return ((view.numpy().astype(np.float64) * std + mean) * 255.0).clip(0.0, 255.0).transpose(1, 2, 0)


def assert_shows(path, config, views, rows):
    """Tolerance: half a level for rounding, 1e-3 for float32."""
    groups = [views.global_views] + ([] if views.local_views is None else [views.local_views])
    columns = [view for group in groups for view in group]
    assert len(lay_out(config.views).columns) == 1 + len(columns)
    for row in range(rows):
        for column, view in enumerate(columns, start=1):
            shown = cell(path, config, row, column)
            assert np.abs(shown - in_colour(view[row], config)).max() < 0.501


def test_the_sheet_shows_what_the_training_loop_makes(tiny, folder, tmp_path, monkeypatch):
    config = tiny(
        data__spec=folder,
        views__blur="0.5,0.5,0.5",
        training__batch_size="4",
        heads__dim="4",
        training__max_steps="3",
        training__seed="3",
        compute__accelerator="cpu",
    )
    made = []
    real = view_making.render
    with monkeypatch.context() as patched:
        patched.setattr(view_making, "render", lambda *args: made.append(real(*args)) or made[-1])
        pretrain(config, tmp_path / "run")
    for step in (0, 2):
        write_views(config, tmp_path / "sheet.png", name="tiny", pictures=3, step=step)
        assert_shows(tmp_path / "sheet.png", config, made[step], 3)
    with pytest.raises(AssertionError):  # another step has other views: the comparison can fail
        assert_shows(tmp_path / "sheet.png", config, made[1], 3)


@pytest.mark.parametrize(
    ("sizes", "factor"), [((32, 16), 4), ((56, 24), 2), ((130, 96), 1)], ids=lambda v: str(v).replace(" ", "")
)
def test_every_pixel_is_that_of_make_views(folder, tmp_path, sizes, factor):
    config = resolve(
        data__spec=folder,
        views__global_size=str(sizes[0]),
        views__local_size=str(sizes[1]),
        views__local="3",
        views__solarise="0.5,0.5,0.5",
        training__batch_size="6",
        training__seed="5",
    )
    assert lay_out(config.views).factor == factor
    pictures = load_pictures(folder)
    order = Order(len(pictures), batch_size=6, seed=5)
    chosen = order(3)  # in the second epoch
    some = pictures.subset(chosen)
    views = make_views(some.images, some.sizes, config.views, seed=5, step=3, positions=torch.arange(6))
    write_views(config, tmp_path / "sheet.png", name="demo", pictures=4, step=3)
    assert_shows(tmp_path / "sheet.png", config, views, 4)


def test_the_first_column_is_the_original(tmp_path):
    config = resolve()
    write_views(config, tmp_path / "sheet.png", name="demo", pictures=2, step=1)
    pictures = load_pictures("photos")
    for row, number in enumerate(Order(len(pictures), batch_size=128, seed=0)(1)[:2].tolist()):
        assert np.array_equal(cell(tmp_path / "sheet.png", config, row, 0), pictures.images[number].permute(1, 2, 0))


def test_originals_keep_their_ratio():
    def of(height, width):
        return np.zeros((height, width, 3), dtype=np.uint8)

    assert fitted(of(300, 400), 128).size == (128, 96)
    assert fitted(of(400, 4), 128).size == (1, 128)
    assert fitted(of(32, 16), 128).size == (64, 128)  # four times
    assert fitted(of(100, 90), 128).size == (90, 100)  # no whole factor fits
    assert fitted(of(128, 128), 128).size == (128, 128)


def test_labels_do_not_overlap():
    config = resolve(views__global_size="16", views__local_size="2", views__local="12")
    layout = lay_out(config.views)
    assert [column.label for column in layout.columns[:4]] == ["original", "global 1", "global 2", "local 1"]
    for column, following in zip(layout.columns, layout.columns[1:], strict=False):
        assert column.left + max(column.side, text_width(column.label)) < following.left


def test_title_labels_and_rows_are_on_the_sheet(folder, tmp_path):
    config = resolve(data__spec=folder, views__local="0")
    write_views(config, tmp_path / "sheet.png", name="a recipe with a long name " * 5, pictures=1)
    layout = lay_out(config.views)
    sheet = np.array(Image.open(tmp_path / "sheet.png"))
    inked = (sheet[: layout.top] != np.array(PAPER)).any((1, 2))
    assert len(layout.columns) == 3
    assert inked.sum() > 15  # three lines of letters above the images
    assert (sheet[:, -5:] == np.array(PAPER)).all()  # nothing is cut off on the right


def test_the_returned_sentence_describes_the_sheet(folder, tmp_path):
    out = tmp_path / "new" / "sheet.PNG"
    sentence = write_views(resolve(data__spec=folder), out, name="demo", pictures=1, step=2)
    assert sentence.startswith(f"wrote {out}: 1 image of demo, {folder}, step 2, seed 0, ")
    assert "enlarged 4 times" in sentence
    assert "--training.batch_size 12" in sentence  # there are fewer than the recipe's 128 images
    assert [p.name for p in out.parent.iterdir()] == ["sheet.PNG"]


def test_unreadable_images_are_replaced_and_named(tmp_path, capsys):
    (tmp_path / "pictures").mkdir()
    folder = write_pictures(tmp_path / "pictures")
    broken = resolve(data__spec=folder, data__max_bad="0.2", training__batch_size="12")
    number = int(Order(12, batch_size=12, seed=0)(0)[0])
    (tmp_path / "pictures" / f"{number:02d}.png").write_bytes(b"no image")
    write_views(broken, tmp_path / "sheet.png", name="demo", pictures=1)
    assert f"{number:02d}.png" in capsys.readouterr().err
    following = load_pictures(folder, max_bad=0.2).subset(torch.tensor([number % 11]))  # the bad one is not in it
    views = make_views(following.images, following.sizes, broken.views, seed=0, step=0, positions=torch.arange(1))
    assert_shows(tmp_path / "sheet.png", broken, views, 1)


@pytest.mark.parametrize(
    ("out", "options", "changes", "parts"),
    [
        ("sheet.jpg", {}, {}, ["sheet.jpg", "sheet.png"]),
        ("sheet", {}, {}, ["'", "sheet.png"]),
        ("sheet.png", {"pictures": 0}, {}, ["--pictures is 0", "1 to 12"]),
        ("sheet.png", {"pictures": 65}, {"data__spec": "photos"}, ["--pictures is 65", "1 to 64"]),
        ("sheet.png", {"pictures": 9}, {"training__batch_size": "8"}, ["--pictures is 9", "1 to 8"]),
        ("sheet.png", {"step": -1}, {}, ["--step is -1", "0 to 9"]),
        ("sheet.png", {"step": 10}, {}, ["--step is 10", "0 to 9"]),
        ("sheet.png", {}, {"data__spec": "folder:nowhere"}, ["nowhere"]),
        ("sheet.png", {}, {"data__spec": "photos@nowhere"}, ["photos@nowhere"]),
    ],
)
def test_wrong_use_is_an_error_and_leaves_no_file(folder, tmp_path, monkeypatch, out, options, changes, parts):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProsminError) as raised:
        write_views(resolve(**({"data__spec": folder} | changes)), tmp_path / out, name="demo", **options)
    for part in parts:
        assert part in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_the_file_is_an_error(folder, tmp_path):
    (tmp_path / "sheet.png").mkdir()
    with pytest.raises(ProsminError, match=r"sheet\.png"):
        write_views(resolve(data__spec=folder), tmp_path / "sheet.png", name="demo", pictures=1)
    assert [p.name for p in tmp_path.iterdir()] == ["sheet.png"]
