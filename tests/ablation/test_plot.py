"""The numbers and the plot of a grid."""

import xml.etree.ElementTree as ElementTree

import pytest

from prosmin import config as configs
from prosmin.ablation.cells import make_cells
from prosmin.ablation.grid import combine
from prosmin.ablation.outcome import Outcome, measured, over_seeds, training_seconds
from prosmin.ablation.plot import draw, swept_axis, write_plot
from prosmin.scoring import ProprietyWarning

# Numbers and drawings


def test_seconds_are_computed_from_the_log():
    rows = [{"step": 10, "images_per_second": 100.0}, {"step": 15, "images_per_second": 50.0}]
    assert training_seconds(rows, batch_size=20) == 2.0 + 2.0
    assert training_seconds([], batch_size=20) is None
    assert training_seconds([{"step": 1, "images_per_second": 0.0}], batch_size=20) is None


@pytest.mark.parametrize(
    ("values", "log", "joined", "labels"),
    [
        ([0.4, 0.5, 0.6], False, True, ["0.4", "0.5", "0.6"]),
        ([4096, 256, 1024], True, True, ["256", "1024", "4096"]),
        ([0, 1, 100], False, True, ["0", "1", "100"]),
        ([0.8, 0.9, 0.99, 0.996], False, True, ["0.8", "0.9", "0.99", "0.996"]),
        ([True, False], False, False, ["true", "false"]),
        (["energy", None], False, False, ["energy", "null"]),
        (["a very long name of a row", "another such long name", "short"], False, False, ["1", "2", "3"]),
        ([7], False, True, ["7"]),
    ],
)
def test_the_axis_fits_the_values(values, log, joined, labels):
    axis = swept_axis(values)
    assert (axis.log, axis.joined) == (log, joined)
    assert [axis.label(tick) for tick in axis.ticks] == labels
    places = axis.place([axis.tick(value) for value in values])
    assert places.min() > 0
    assert places.max() < 1
    assert len(set(places)) == len(values)


def fake_outcomes(grid, metrics):
    """Finished cells with the metrics that `metrics` gives for what they sweep."""
    return [Outcome(cell=cell, metrics=metrics(cell.swept), verdict="healthy") for cell in make_cells(grid)]


def test_the_plot_has_a_panel_per_metric_and_a_bar_per_range():
    grid = combine(grid="samples", recipe=None, over=["training.seed=0,1,2", "views.local=1,2"], fields={})
    with pytest.warns(ProprietyWarning, match=r"lam 0\.5"):  # of the paper's objective
        outcomes = fake_outcomes(grid, lambda swept: {"loss": swept["loss.samples"] + 0.1 * swept["training.seed"]})
    (summary, *_), count = over_seeds(outcomes), len(over_seeds(outcomes))
    assert (count, summary.seeds) == (8, 3)
    assert (summary.metrics["loss"].low, summary.metrics["loss"].high) == (2.0, 2.2)
    outcomes[0] = Outcome(cell=outcomes[0].cell, error="it failed")
    svg = draw(grid, over_seeds(outcomes), measured(outcomes))
    root = ElementTree.fromstring(svg)
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert tags.count("svg") == 1 + 1
    assert tags.count("circle") == 8  # a mean for each of 4 x 2 settings
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"2", "4", "8", "16", "loss.samples", "●  views.local 1"} <= set(texts)
    assert any("mean and range of 3 seeds" in (text or "") for text in texts)


def test_seeds_alone_are_not_averaged_and_nothing_measured_is_no_plot(tmp_path):
    grid = combine(grid=None, recipe="demo", over=["training.seed=0,1,2"], fields={})
    outcomes = fake_outcomes(grid, lambda swept: {"loss": float(swept["training.seed"])})
    assert [summary.seeds for summary in over_seeds(outcomes)] == [1, 1, 1]
    write_plot(grid, outcomes, tmp_path / "plot.svg")
    assert ElementTree.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")
    write_plot(grid, [Outcome(cell=o.cell) for o in outcomes], tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


def test_names_cannot_break_the_drawing(tmp_path):
    file = tmp_path / "grid.yaml"
    file.write_text("{recipe: demo, rows: {'<b>&\"x': {loss.samples: 2}, y: {loss.samples: 8}}}")
    grid = combine(grid=str(file), recipe=None, over=[], fields={})
    outcomes = fake_outcomes(grid, lambda swept: {"knn_top1": 0.5})
    write_plot(grid, outcomes, tmp_path / "plot.svg")
    texts = [e.text for e in ElementTree.parse(tmp_path / "plot.svg").getroot().iter()]
    assert any('<b>&"x' in (text or "") for text in texts)
    assert configs.build(configs.to_tree(outcomes[0].cell.config)) == outcomes[0].cell.config
