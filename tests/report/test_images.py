"""Single images: the album, the map, attention; and the corrupted images."""

import json
import re
import shutil

import numpy as np
import pytest

from fake_run import NASTY, fake_run
from prosmin.report import write_report
from prosmin.report.drawing.svg import WIDTH
from prosmin.report.runs import read_run
from prosmin.report.sections.attention import COLOURS, SIDE, overlay
from prosmin.report.sections.corruption import read_matrix, severity_figure
from prosmin.report.sections.images import Album, album_json, embed, gallery, read_album
from prosmin.report.sections.map import atlas, class_table, fifths, laid_out


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read_run(fake_run(tmp_path_factory.mktemp("runs") / "demo"), "demo")


def an_album(labels, *, sets=None, shown=None):
    """Images along a line, each with its two neighbours on it."""
    count = len(labels)
    near = np.array([[max(i - 1, 0), min(i + 1, count - 1)] for i in range(shown or count)])
    return Album(
        jpeg=b"",
        tile=32,
        columns=4,
        evaluated=count,
        points=np.column_stack([np.linspace(0, 1, len(near)), np.full(len(near), 0.5)]),
        neighbours=near,
        similarity=np.full(near.shape, 0.5),
        key=[f"k{i}" for i in range(count)],
        label=list(labels),
        set=list(sets or ["test"] * count),
        value=np.arange(count, dtype=float),
    )


class TestAlbum:
    def test_the_page_contains_the_album(self, run):
        album = read_album(run)
        data = json.loads(album_json(album, album.points))
        assert data["key"] == album.key
        assert [data["labels"][i] for i in data["label"]] == album.label
        assert np.array_equal(data["near"], album.neighbours)
        np.testing.assert_allclose(data["like"], album.similarity, atol=6e-5)
        np.testing.assert_allclose(data["at"], album.points, atol=6e-5)
        assert [data["strange"][i] for i in data["set"]] == [name != "test" for name in album.set]

    def test_no_name_ends_the_script(self, tmp_path):
        page = write_report([fake_run(tmp_path / "run", nasty=True)], tmp_path / "page.html").read_text()
        blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, flags=re.S)
        assert len(blocks) == 2
        assert all("<" not in block for block in blocks)
        assert NASTY in json.loads(blocks[0])["labels"]
        assert json.loads(embed(["</script>", "<!--", "ü"])) == ["</script>", "<!--", "ü"]

    @pytest.mark.parametrize(
        "change",
        [
            {"map": np.zeros((3, 2), dtype=np.float32)},
            {"map": np.full((132, 2), np.nan)},
            {"neighbours": np.full((132, 8), 1000)},
            {"neighbours": np.full((132, 8), -1)},
            {"similarity": np.zeros((132, 3))},
            {"key": np.array(["a"])},
            {"tile": np.array([32])},
            {"sheet": np.zeros(4)},
        ],
    )
    def test_parts_that_do_not_fit_give_no_album(self, run, change):
        assert read_album(run) is not None
        broken = {**run.arrays, "pictures": {**run.arrays["pictures"], **change}}
        assert read_album(type(run)(path=run.path, name="r", arrays=broken)) is None

    def test_a_run_without_one_names_the_command(self, run, tmp_path):
        copy = tmp_path / "run"
        shutil.copytree(run.path, copy)
        (copy / "results" / "pictures.npz").unlink()
        html = write_report([copy], tmp_path / "page.html").read_text()
        assert f"prosmin evaluate {copy} --protocols pictures" in html
        assert 'id="attention"' not in html  # nothing to say of it
        assert "data-place" not in html

    def test_gallery_images_are_found_by_name_and_kind(self, run):
        album = read_album(run)
        for kind in ("certain", "uncertain", "ood"):
            for picture in gallery(run, kind, album).pictures:
                place = int(picture.place.removeprefix("0:"))
                assert album.key[place] == picture.key
                assert (album.set[place] != "test") == (kind == "ood")
        twice = an_album(["a", "b"], sets=["test", "elsewhere"])
        same = type(twice)(**{**vars(twice), "key": ["k", "k"]})
        found = [same.find("k", strange=False), same.find("k", strange=True), same.find("x", strange=True)]
        assert found == [0, 1, None]


class TestMap:
    def test_every_image_has_a_mark_at_its_place(self, run):
        drawn = atlas(run, read_album(run))
        assert drawn.svg.count('class="dot ') == 120 + 12
        assert drawn.svg.count('class="dot strange"') == 12
        assert [key.label for key in drawn.legend][-1] == "out of distribution"
        assert "120 of the 840 evaluated images" in drawn.reading
        assert "keeps 62.0 %" in drawn.reading
        points = json.loads(drawn.data)["at"]
        circles = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn.svg)
        size = re.search(r'viewBox="0 0 (\d+) (\d+)"', drawn.svg).groups()
        np.testing.assert_allclose(np.array(circles, dtype=float) / np.array(size, dtype=float), points, atol=3e-4)

    def test_a_map_is_rotated_to_the_least_height_without_distortion(self):
        rng = np.random.default_rng(0)
        upright = rng.normal(size=(200, 2)) * [0.05, 0.2] + 0.5
        places, height = laid_out(upright)
        assert height < WIDTH / 2
        assert places.min() >= 0
        assert places[:, 0].max() <= WIDTH
        assert places[:, 1].max() <= height

        def lengths(points):
            return np.linalg.norm(points[:, None] - points[None], axis=-1)[np.triu_indices(200, 1)]

        ratio = lengths(places) / lengths(upright)
        assert ratio.max() / ratio.min() < 1 + 1e-9  # turned and scaled, nothing stretched
        flipped = np.linalg.det(np.linalg.lstsq(upright - upright.mean(0), places - places.mean(0), rcond=None)[0])
        assert flipped > 0  # nor mirrored

    @pytest.mark.parametrize("points", [np.full((3, 2), 0.5), np.array([[0.5, 0.0], [0.5, 1.0]]), np.zeros((1, 2))])
    def test_points_without_extent_are_on_the_map(self, points):
        places, height = laid_out(points)
        assert np.isfinite(places).all()
        assert (places >= 0).all()
        assert (places <= [WIDTH, height]).all()
        assert height <= WIDTH
        np.testing.assert_allclose((places.min(0) + places.max(0)) / 2, [WIDTH / 2, height / 2])

    def test_many_classes_share_the_colours(self, run):
        names = [f"class {i:02d}" for i in range(25) for _ in range(30 - i)]
        legend = atlas(run, an_album(names)).legend
        assert [key.label for key in legend] == [f"class {i:02d}" for i in range(19)] + ["other classes"]
        assert [key.diamond for key in legend] == [False] * 10 + [True] * 9 + [False]
        assert len({(key.style, key.diamond) for key in legend}) == 20

    def test_without_labels_the_uncertainty_gives_the_colour(self, run):
        drawn = atlas(run, an_album([""] * 10))
        assert drawn.legend == []
        assert [key.style for key in drawn.fifths] == ["u0", "u1", "u2", "u3", "u4"]
        assert [row[1] for row in drawn.table.rows] == ["2"] * 5

    def test_fifths_are_of_test_images_only(self):
        found = fifths(an_album(["a"] * 10 + ["b"] * 2, sets=["test"] * 10 + ["out"] * 2))
        assert found == ["u0", "u0", "u1", "u1", "u2", "u2", "u3", "u3", "u4", "u4", "strange", "strange"]

    def test_table_counts_neighbours_of_the_same_class(self):
        table = class_table(an_album(["a", "a", "a", "b", "b", "b"], shown=5), "t")
        # Neighbours: 0: (0, 1), 1: (0, 2), 2: (1, 3), 3: (2, 4), 4: (3, 5).
        assert [[getattr(cell, "text", cell) for cell in row] for row in table.rows] == [
            ["a", "3", "1.00", "83.3 %"],
            ["b", "2", "3.50", "75.0 %"],
        ]


class TestAttention:
    def test_it_is_bright_where_the_weight_is(self):
        weights = np.zeros((4, 4))
        weights[3, 0] = 0.2
        drawn = overlay(np.zeros((32, 32, 3), dtype=np.uint8), weights)
        assert drawn.shape == (SIDE, SIDE, 3)
        light = drawn.sum(2)
        row, column = divmod(int(light.argmax()), SIDE)
        assert row > 3 * SIDE // 4
        assert column < SIDE // 4
        assert light[: SIDE // 2, SIDE // 2 :].max() == pytest.approx(0.62 * sum(COLOURS[0]), abs=2)

    def test_the_numbers_count_the_patches_that_share_the_weight(self, tmp_path):
        run = read_run(fake_run(tmp_path / "run"), "run")
        run.arrays["pictures"]["attention"][:] = 0.01
        run.arrays["pictures"]["attention"][:, 1, :4] = 0.0
        html = write_page(run, tmp_path)
        strip = re.search(r'<figure id="figure-attention-0".*?</figure>', html, flags=re.S).group()
        assert strip.count("<td>64.0</td>") == 3  # the first head looks at all patches
        assert strip.count("<td>32.0</td>") == 3
        assert "48.0 % of the class token" in strip


def write_page(run, tmp_path):
    """The page of a run whose arrays were changed."""
    np.savez_compressed(run.path / "results" / "pictures.npz", **run.arrays["pictures"])
    return write_report([run.path], tmp_path / "page.html").read_text()


class TestCorruption:
    def test_means_leave_the_extra_corruptions_out(self, run):
        matrix = read_matrix(run)
        matrix.names[1] = "spatter"  # one of the extra four
        figure = severity_figure([matrix], "error")
        rows = [0, 2, 3, 4]
        expected = f"{100 * matrix.tables['error'][rows, 2].mean():.1f} %"
        assert figure.table.rows[0][4] == expected
        assert figure.table.rows[0][1] == "15.0 %"  # clean

    def test_a_number_that_is_missing_leaves_a_gap(self, run):
        matrix = read_matrix(run)
        assert np.isnan(matrix.tables["ece"][0, 4])
        figure = severity_figure([matrix], "ece")
        assert "nan" not in str(figure.chart.svg) + str(figure.table)

    @pytest.mark.parametrize(
        "change", [{"names": "x"}, {"error": [[1.0]], "nll": None, "ece": [1]}, {"clean": None}, {"severities": None}]
    )
    def test_tables_that_do_not_fit_are_left_out(self, run, change):
        curves = {"corruption": {**run.part("corruption", "curves")["corruption"], **change}}
        results = {"corruption": {**run.results["corruption"], "curves": curves}}
        assert read_matrix(type(run)(path=run.path, name="r", results=results)) is None
