"""kNN during training: it changes nothing, and equals the kNN of the finished encoder."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from prosmin.data.image_sets import load_pictures
from prosmin.data.subsets import balanced_subset
from prosmin.encoder import load
from prosmin.errors import UsageError
from prosmin.evaluation.probes.held_out import held_out_knn
from prosmin.training.pretrain import pretrain
from tiny_run import metrics

KNN = {"training__knn_every": "2", "training__knn_pictures": "300"}


def test_online_knn_changes_no_bit_and_equals_that_of_the_encoder(finished, train):
    """No trace of training mode in the features, nor of evaluation mode in the run."""
    measured = train(**KNN)
    first, second = (load_file(run / "encoder.safetensors") for run in (finished, measured))
    assert all(torch.equal(first[name], second[name]) for name in first)
    rows = metrics(measured)
    assert [row["step"] for row in rows if "knn_top1" in row] == [2, 4, 6]
    assert [{k: v for k, v in row.items() if k != "knn_top1"} for row in rows] == metrics(finished)
    images = load_pictures("photos")
    chosen = images.subset(balanced_subset(images.labels, 300 / len(images), seed=0))
    # On a GPU one of 30 images may change its class: training rounds views and products to TF32, an encoder does not.
    error = 0.04 if torch.cuda.is_available() else 0.0
    assert rows[-1]["knn_top1"] == pytest.approx(held_out_knn(load(measured), chosen)["knn_top1"], rel=0, abs=error)


def test_images_without_labels_or_held_out_tenth_are_refused(train, tiny, tmp_path, image_folder):
    spec = f"folder:{image_folder(40)}"
    with pytest.raises(UsageError, match=rf"knn_every is 2, .*{spec}"):
        train(**KNN, data__spec=spec)
    for i in range(40):
        (tmp_path / f"set/{i:02d}").mkdir(parents=True)
        Image.new("RGB", (32, 32), (i, 2 * i, 255 - i)).save(tmp_path / f"set/{i:02d}/x.png")
    with pytest.raises(UsageError, match=rf"knn_every is 2, .* 40 .*folder:{tmp_path}/set"):
        train(**KNN, data__spec=f"folder:{tmp_path}/set")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match=r"training\.encoder.*training\.knn_every"):
        tiny(training__encoder="best")


def test_knn_in_double_precision_and_in_a_thread(tmp_path, tiny):
    """Python catches signals in the main thread only; a run in another thread works without."""
    config = tiny(**KNN, compute__precision="64-true", compute__accelerator="cpu", training__max_steps="2")
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(pretrain, config, tmp_path / "run").result()
    assert "knn_top1" in (run / "metrics.jsonl").read_text()
