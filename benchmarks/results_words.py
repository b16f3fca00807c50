"""The sentences of RESULTS.md that hold whatever the numbers are."""

from prosmin.evaluation.protocols.ood import DEFAULT

INTRODUCTION = """\
Made by `make results` from the files in `benchmarks/results/` alone: do not edit it. A test fails when it is not
what the files give. What was tried on the way is told in `benchmarks/LOG.md`."""

OURS = """\
*ProSMIN* here is the score together with an identification term, which the paper does not have. Its deterministic twin
has that term too: where both lead, the lead is not the score's."""

PROTOCOL = """\
CIFAR-10, one protocol for all methods. Each is trained without labels on the 50,000 training pictures by
`benchmarks/evidence.py`; then its frozen encoder is judged on the 10,000 test pictures, with the 10,000 test
pictures of CIFAR-100 (near) and 10,000 of SVHN's (far) as strangers, and on the test pictures under generated
corruptions of five severities, ImageNet-C's or CIFAR-10-C's as each table says. At 32 px the former are far stronger
than those of CIFAR-10-C and not comparable with its published numbers; the latter have the same constants and other
random numbers, and how near they come was not measured. [docs/evaluation.md](docs/evaluation.md) says how each
measure is taken. The deterministic twin is ProSMIN with its scale forced to 0 (`heads.scale=zero`) and nothing else
changed, so that holding the two against each other is about the scale alone. iBOT learns from the tokens of patches
and needs a ViT.

The methods of a table share engine, pictures, backbone, epochs and batch. Rates, number of views, momentum and heads
are each method's own: MoCo v3 sees two views of a picture where the others see more. Features are the online
network's for every method, also for DINO and iBOT, whose papers judge the teacher; where a run's file has the target
network's too, they have a table of their own.

The training pictures were read from JPEG copies (quality 92, no chroma subsampling, about 37 dB to the original
pixels), all test sets from lossless ones: training on the original files may give slightly other numbers."""

CHOICES = """\
**What was chosen on what.** Values in the recipes are picked by the labels of a fixed held-out tenth of the training
pictures, without reading a test picture (`benchmarks/cifar.py`); those pictures themselves were trained on, without
labels, like all 50,000. Strength and temperature of the linear probe are chosen on such a tenth too, those of
low-shot probes within their few labels. No value is picked by test pictures, yet they are not untouched: the ideas of
leaving out same-view pairs and of two out-of-distribution scores (`similarity_norm`, `distance_and_scale`) came after
test results of earlier runs had been seen. And the *best* out-of-distribution score of a run is named after seeing
all of them on the same pictures, so it says what the encoder holds, not what a user would have picked."""

FIRST = """\
"Before tuning" is not the same for all. On the ResNet it is true of the other methods; ProSMIN's recipe there had been
through a first tuning, with earlier code: its forecast was not yet in units of the target's spread, and there was no
identification term to turn on. On the ViT ProSMIN began with the heads and the loss that tuning had kept on the ResNet
(the heads in short runs of a ViT too), MoCo v3 and DINO without what was kept there for them, a quicker target and a
higher rate: a lead of ProSMIN in that table is to be read with this in mind. iBOT has its published head there and the
code of today; DINO's run with today's code has the same configuration, since tuning kept nothing for it."""

FALLEN = (
    "**{} collapsed here.** A first rank of such a run in NLL or calibration under corruptions shows that an encoder "
    "which knows little is rarely overconfident."
)

READING = f"""\
- `84.3 ± 0.4`: mean and standard deviation over the seeds that the row names.
- `84.3 [83.6, 85.0]`: one seed. The bracket is a 95 % interval of the sampling of the test pictures only: another
  seed may fall outside it. Accuracies: binomial (Wilson). Low-shot: with the draw of the labels, by Student's
  factor for so few draws. Mean corruption error: binomial, as if all corruptions of a picture went right or wrong
  together, so rather too wide. AUROC: Hanley and McNeil. ECE: the bootstrap of its file. Where a single seed has no
  bracket, its file has no interval.
- `(1)` is the rank among the methods that ran, by the mean; the best is bold. A rank orders means: it does
  not tell them apart. Settings and cost are not ranked: peak lr is the highest rate of the
  schedule, seconds are as noisy as the machine and hold the time to compile, which the first run of a process pays, and
  the slower pace where another run was being judged on the same GPU (a run that shared it with another training has
  none), effective rank is that of the features at the end of training. *Best
  score of each run*: ProSMIN has up to nine scores to be best in, a method without a scale five.
- ECE is the linear probe's before temperature scaling; its floor is what a perfectly calibrated model with the same
  confidences would still show on as many pictures. Ranks of runs whose intervals hold their floors order noise.
- *Told apart*, *ahead*, *behind*, *helps*, *hurts*: 0 lies outside the 95 % interval of the difference, taken as if the
  two had seen different test pictures (too wide: they saw the same). With one seed it knows nothing of other seeds.
- In short a method is held to the better of its runs with the recipe of today and with that before tuning.
- FPR at 95 %: the share of strangers that pass where 95 % of the test pictures do; lower is better. OpenOOD 1.5 counts
  the other way, the share of test pictures flagged where 95 % of strangers are; the files have both.
- *raw pixels*, *untrained* and *untrained, BatchNorm set* are the pixels themselves and the same network without
  training, in the latter case with BatchNorm's statistics from the training pictures. They are not ranked.
- R-AUROC says whether the uncertainty foretells a wrong nearest neighbour. It stands beside R@1, since another
  encoder makes other errors. The neighbour is the nearest other test picture; the uncertainty is the mean log scale,
  or the variance between views where a method has no scale. Beside it stand orders that every encoder has: the distance
  to the training pictures (the 50th nearest of 50,000), the variance between views, a short feature, a picture of low
  sharpness. A scale is worth having where it beats them. Below 50 % the order is the other way round: there it is the
  long feature that foretells an error. *Spearman with feature norm* says how far the uncertainty is the length of the
  feature over again (-1 or 1).
- *AURC*: the mean error of the nearest training picture's class over all shares that are answered, the surest first.
  Lower is better; a better encoder has less to begin with.
- *N % intervals hold*: the share of coordinates within the forecast's central N %. N is right, less is too sure.
- *90 % ellipsoids hold*: the share of whole embeddings within the region that should hold 90 %. It takes the
  coordinates as independent, as the forecast does; where they are not it is off even if every interval holds. The
  projector's embedding has more coordinates than its bottleneck has directions, so that errors must go together:
  *could hold* is what these would reach with right spreads.
- *squared error ratio*: squared error over forecast variance. 1 is right, 4 is half the spread that it should be.
- *PIT distance*: the largest gap between the distribution of the forecast's quantiles and the uniform one. 0 is right.
- *skill against one scale*: 1 less the ratio of energy scores to the same means with one constant scale, fitted on
  training pictures. Above 0 a scale of its own for every picture is worth something.
- *skill against one scale a coordinate*: the same with a constant scale for each coordinate, so that what is left is
  the pictures' own.
- *skill against climatology*: the same against a forecast that does not look at the picture.
- The default out-of-distribution score is `{DEFAULT}`.
- *earlier code*: today the same configuration trains otherwise. ProSMIN's forecast was not yet in units of the target's
  spread; DINO's prototypes began shorter than published, so that a step turned them further, and MoCo v3's ViT with
  positions too small to be seen at first. DINO was trained with both: `cifar10-vit-dino-100-first` and
  `cifar10-vit-dino-100` differ by it alone, as do `cifar10-resnet18-dino-100-earlier` and `cifar10-resnet18-dino-100`.
  What it did to the others was not measured.
- *not run*: there is no file. *not measured*: the file has no such number. *other severities*: its corruptions were
  stronger or milder than those of most runs of the table."""

LIGHTLY = """\
Published, other protocol: the CIFAR-10 benchmark in lightly's documentation, a ResNet-18 with a 3x3 stem too, 200
epochs. Its kNN takes k = 200 and the best epoch on the test pictures; ours is the last epoch, and its column with k
= 200 is the nearer one."""

FORECASTS = """\
Runs that forecast the target network's embedding of another view of the picture, on at most 512 test pictures. No
method is ranked by this: the others forecast nothing that could be observed. Brackets are the files' 95 % intervals
over the pictures. The runs along one field stand under [Ablations](#ablations)."""

SCORES = """\
AUROC in per cent, near (CIFAR-100) / far (SVHN); the best score of a run in bold. Strangers are the positive class.
Brackets below the table are 95 % intervals of the sampling of the pictures, over several seeds with Student's."""

SSD = """\
Published, other protocol: SSD (ResNet-50, self-supervised, Mahalanobis distance) reports 90.6 near and 99.6 far."""

TWIN = """\
ProSMIN less its deterministic twin, paired by seed. The rule: *helps* when the whole 95 % interval of the
difference is on the better side of zero, *hurts* when it is on the other, else *no difference beyond the interval*.
Its interval is the sampling of the test pictures, as if the two had seen different ones (too wide: they saw the same);
over several seeds, which share these pictures, Student's is added to it, and of a single one it knows nothing of others
(too narrow). Where the files have no sampling interval it is Student's alone. Two runs of ProSMIN's ViT that differ by
the width of the heads, and two of DINO's ResNet that differ by their start, are as far apart in CIFAR-100 and SVHN as
the twins are: in these one seed settles nothing."""

COLLAPSE = """\
As a theorem the claim is wrong: a constant output with scale 0 has loss 0, and below a threshold of lam the score
has no minimum at all ([docs/scoring.md](docs/scoring.md)). What remains is whether training gets there. A run
counts as collapsed when its health verdict says collapsing or shrinking, or when its kNN is no better than that of
the same network untrained. A scale that runs to its bound while the target keeps its spread is not the constant output
that the claim denies; it counts all the same where little was learnt."""

ABLATIONS = """\
ProSMIN, ResNet-18, 25 epochs, one field at a time, judged on the test pictures like the rest: nothing may be chosen
by them. Points in the figures carry 95 % intervals as above."""

LAM = """\
The lowest panel holds the mean scale against the one constant scale that suits the same run's forecasts best, since
the spread that there is to forecast differs between the runs; both it and the theory of
[docs/scoring.md](docs/scoring.md) (dotted) are 1 at lam 0.5. *At its bound*: the largest scale that the predictor can
say, for every picture; the score pays for more. The column *scale / constant scale* is not divided by its value at
0.5, which is not 1: the mean is over all views in training, small ones too, the constant one suits the global views."""

TUNING = """\
Short runs judged on the held-out tenth of the training pictures: not comparable with the tables above.
`benchmarks/LOG.md` tells what each was for. The methods did not have the same chances. ProSMIN had most trials, its
changes were added to one another, and some were kept for less than the point of kNN that was asked of changes to the
ViT's baselines; on the ViT it began with what trials on the ResNet had kept. Two of DINO's trials on the ViT stalled
by a schedule too short for them, and MoCo v3's first two had the faulty start."""

FILES = """\
A file `NAME-sSEED.json` holds one run: its whole configuration, health, every metric, hardware and command. The
hash is of all that determines the result, the seed too. DIR is the folder of the data, RUNS that of the run
folders."""

WAITING = {
    "headline": (
        "What lacks of the runs of 200 epochs was not made for want of time on a GPU{cost}. The runs of 100 epochs say "
        "what half of it reaches; `python benchmarks/evidence.py --data DIR --runs RUNS --stage headline` makes them."
    ),
    "axes": (
        "What lacks along other fields was not made for want of time on a GPU{cost}. What trials of some of these "
        "fields said stands under [What was tuned](#what-was-tuned); `--stage axes` makes the runs."
    ),
}
"""Stages that wait, and why."""

NEVER = {
    "cifar10-resnet18-deterministic-100-first": (
        "code and recipe of that time are gone, and in short runs with them it shrank as ProSMIN did (`start-det` and "
        "`fixbdet` in `tuning-cifar10-h200.jsonl`)"
    ),
    "cifar10-vit-deterministic-100-first": (
        "it would differ from `cifar10-vit-deterministic-100` by the width of its heads alone, and ProSMIN's two runs, "
        "which differ by the same, are not told apart in kNN and linear probe (in CIFAR-100, SVHN and R-AUROC by "
        "distance they are, the wider before the narrower)"
    ),
}
"""Runs that will not be made, and why."""
