"""The figures of Lumos: accuracy and AUC, by epsilon, without trimming and without virtual nodes, and costs.

The paper prints no accuracy and no AUC, only by how many percent Lumos is above or below others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphfed.reproductions.base import (
    Paper,
    Quick,
    Relative,
    Row,
    Runs,
    paragraphs,
    point,
)
from graphfed.reproductions.lumos_workloads import FIG7

FACEBOOK = {"data": "facebook", "partition": "ego"}
#: The two tasks: node classification, and link prediction.
SUPERVISED = {"split": "random_plain:0.5,0.25,0.25"}
UNSUPERVISED = {"task": "link_prediction", "split": "edges:0.8,0.05,0.15"}
TASKS = {"supervised": SUPERVISED, "unsupervised": UNSUPERVISED}

#: The paper takes the unbiased estimate of a received bit, and the middle of the bounds for one not sent.
PAPERS_DECODING = {"unsent_value": 0.5, "decode": "unbiased"}
#: Central training, and one network of each node's own features, which has no edge and sends nothing.
ADAM = {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.0, "dropout": 0.01, "local_steps": 1}
OWN_FEATURES = {"supervised": ADAM, "unsupervised": {**ADAM, "weight_decay": 5e-4}}

#: Scored every fifth epoch; a run ends after 40 epochs without a better one.
SCORED = {"eval_every": 5, "patience": 8}
#: On a generated graph of 300 nodes.
QUICK = Quick(seeds=(0,), options={"data": "social", "rounds": 10}, settings={"data.num_nodes": 300})


def compared(metric: str, printed: Mapping[str, float]) -> tuple[Relative, ...]:
    """Return comparisons with the rows of these labels, and the printed figure of each."""
    return tuple(Relative(label, {metric: percent}) for label, percent in printed.items())


# ---- Figs. 3 and 4: accuracy and AUC -----------------------------------------------------------------------

GCN, GAT = {"backbone": "gcn"}, {"backbone": "gat"}


def lumos(
    backbone: str,
    settings: Mapping[str, object],
    relative: tuple[Relative, ...],
    *,
    decoding_seeds: Sequence[int] | None = None,
    **options: int,
) -> tuple[Row, Row]:
    """Return Lumos with our decoding of received bits, and with the paper's."""
    own_features = Relative("own features")
    decoding = {**settings, **PAPERS_DECODING}
    return (
        Row(
            f"{backbone}, Lumos",
            "lumos",
            options=options,
            settings=settings,
            relative=(*relative, own_features),
        ),
        Row(
            f"{backbone}, Lumos, the paper's decoding",
            "lumos",
            options=options,
            settings=decoding,
            seeds=decoding_seeds,
            relative=relative,
        ),
    )


NAIVE_BOUNDED = "GCN, naive FedGNN, 30 set features"
FIG3_GCN = compared(
    "accuracy",
    {"GCN, central": -16.29, "GCN, LPGNN": 6.44, "GCN, naive FedGNN": 74.29, NAIVE_BOUNDED: 74.29},
)
FIG3_GAT = compared("accuracy", {"GAT, central": -16.30, "GAT, LPGNN": 5.10, "GAT, naive FedGNN": 42.13})

FIG3 = Runs(
    name="fig3",
    title="Accuracy on Facebook, a client for each node, epsilon 2",
    source="the text on Fig. 3, which prints how far Lumos is from the others, and no accuracy",
    notes=paragraphs("""
        Half of the nodes are trained on, a quarter decides; 2 layers, 16 hidden units, 4 heads, Adam
        0.01, as in the paper. Every fifth epoch is scored on the validation nodes, the best one on the
        test nodes. The paper runs 300 epochs; here a run ends after 40 without a better one, and for time
        Lumos with GAT ends after 60. The features are the 4 714 of the raw file; which the paper used it
        does not say.

        Lumos has our balancer (balancer=local) and reads a received bit as a shrunk estimate. The rows of
        the paper's decoding take its unbiased one (decode=unbiased), which is what the printed figures are
        of.

        Own features are a network of each node's own features, no edge and no message, trained where all
        are; it has the settings of central training. What a row has above it comes from the graph.

        Naive FedGNN's noise makes 30 million false edges; with GAT it has 1 seed and 10 epochs, for time.
        Its delta, 1e-5, and its budget, epsilon 2 for each of features, edges and labels, are ours; the
        paper states neither. One row has at most 30 set features for each node (max_set_features=30), which
        takes a ninth of the noise for the same budget; 30 is our public guess, and the paper has no such
        bound. LPGNN has epsilon 2 for features and 1 for labels.

        Only the gain over naive FedGNN is said to be relative; the differences from central training and
        LPGNN are taken as relative too.

        Noise comes from the operating system, so that no two runs have the same.
    """),
    metrics=("accuracy",),
    seeds=range(3),
    options={**FACEBOOK, **SUPERVISED, "rounds": 300},
    settings={"heads": 4, **SCORED},
    quick=QUICK,
    rows=(
        Row("GCN, central", "central", settings={**GCN, **ADAM}),
        Row("own features", "own_features", settings=OWN_FEATURES["supervised"]),
        *lumos("GCN", GCN, FIG3_GCN),
        Row("GCN, LPGNN", "lpgnn", settings=GCN),
        Row("GCN, naive FedGNN", "naive_fedgnn", settings=GCN),
        Row(NAIVE_BOUNDED, "naive_fedgnn", settings={**GCN, "max_set_features": 30}),
        Row("GAT, central", "central", settings={**GAT, **ADAM}),
        *lumos("GAT", GAT, FIG3_GAT, decoding_seeds=(0,), rounds=60),
        Row("GAT, LPGNN", "lpgnn", settings=GAT),
        Row("GAT, naive FedGNN", "naive_fedgnn", options={"rounds": 10}, settings=GAT, seeds=(0,)),
    ),
)

FIG4_GCN = compared("auc", {"GCN, central": -7.13, "GCN, naive FedGNN": 22.94})
FIG4_GAT = compared("auc", {"GAT, central": -9.12, "GAT, naive FedGNN": 22.03})

FIG4 = Runs(
    name="fig4",
    title="AUC of link prediction on Facebook, a client for each node, epsilon 2",
    source="the text on Fig. 4, which prints how far Lumos is from the others, and no AUC",
    notes=paragraphs("""
        80 % of the edges are trained on, 5 % decide, 15 % are tested on, together with as many pairs that are
        no edge; trees have training edges only. In the authors' program they have the test edges too.

        Naive FedGNN learns from the edges of the noised graph, nearly all of them false; with GAT it has 1
        seed and 10 epochs, for time. LPGNN has no such task.

        As for fig3 otherwise; Lumos with GAT ends after 40 epochs, and the paper's decoding has 1 seed, for
        time.
    """),
    metrics=("auc",),
    seeds=range(3),
    options={**FACEBOOK, **UNSUPERVISED, "rounds": 300},
    settings={"heads": 4, **SCORED},
    quick=QUICK,
    rows=(
        Row("GCN, central", "central", settings=GCN),
        Row("own features", "own_features", settings=OWN_FEATURES["unsupervised"]),
        *lumos("GCN", GCN, FIG4_GCN, decoding_seeds=(0,)),
        Row("GCN, naive FedGNN", "naive_fedgnn", settings=GCN),
        Row("GAT, central", "central", settings=GAT),
        *lumos("GAT", GAT, FIG4_GAT, decoding_seeds=(0,), rounds=40),
        Row("GAT, naive FedGNN", "naive_fedgnn", options={"rounds": 10}, settings=GAT, seeds=(0,)),
    ),
)


# ---- Fig. 5: by epsilon ------------------------------------------------------------------------------------

EPSILONS = (0.5, 1, 2, 4)
#: The gain over epsilon 0.5, in percent.
GAINS: dict[str, dict[float, float]] = {
    "supervised": {1: 5.13, 2: 9.23, 4: 10.26},
    "unsupervised": {1: 8.88, 2: 15.04, 4: 17.14},
}


#: Fewer seeds for link prediction, which takes longer.
FIG5_SEEDS = {"supervised": range(5), "unsupervised": range(3)}


def by_epsilon(task: str, series: str, settings: Mapping[str, object]) -> list[Row]:
    """Return a line of Fig. 5: Lumos with each epsilon, and its gain over 0.5."""
    return [
        point(
            series,
            epsilon,
            "lumos",
            panel=task,
            options=TASKS[task],
            settings={**settings, "epsilon": epsilon},
            seeds=FIG5_SEEDS[task],
            relative=compared("score", {f"{task} {series} 0.5": GAINS[task][epsilon]})
            if epsilon != 0.5
            else (),
        )
        for epsilon in EPSILONS
    ]


def levels(
    series: str,
    method: str,
    settings: Mapping[str, object],
    *,
    seeds: Sequence[int] | None = None,
    last_seeds: Sequence[int] | None = None,
    **fields: Any,
) -> list[Row]:
    """Return a line that does not depend on epsilon: the same run at both of its ends, the last of which may
    have fewer seeds.
    """
    return [
        point(series, 0.5, method, settings=settings, seeds=seeds, **fields),
        point(series, 4, method, settings=settings, seeds=last_seeds, **fields),
    ]


FIG5 = Runs(
    name="fig5",
    title="Lumos by epsilon on Facebook, GCN",
    source="the text on Fig. 5, which prints the gains over epsilon 0.5",
    notes=paragraphs("""
        Own features do not depend on epsilon; the same run stands at both ends of their line.

        Supervised lines show the accuracy, unsupervised ones (link prediction) the AUC. Which backbone the
        printed gains are of is not stated.

        At most 60 epochs, 3 seeds for unsupervised lines, and the paper's decoding supervised only, for time;
        as for fig3 and fig4 otherwise.
    """),
    metrics=("score",),
    called={"score": "accuracy or AUC"},
    x="epsilon",
    panels=("supervised", "unsupervised"),
    options={**FACEBOOK, "rounds": 60},
    settings=SCORED,
    quick=QUICK,
    rows=(
        *by_epsilon("supervised", "Lumos", {}),
        *by_epsilon("supervised", "Lumos (the paper's decoding)", PAPERS_DECODING),
        *by_epsilon("unsupervised", "Lumos", {}),
        *(
            row
            for task in TASKS
            for row in levels(
                "own features",
                "own_features",
                OWN_FEATURES[task],
                seeds=FIG5_SEEDS[task],
                last_seeds=FIG5_SEEDS[task],
                panel=task,
                options=TASKS[task],
            )
        ),
    ),
)


# ---- Fig. 5 with few coordinates for each receiver ---------------------------------------------------------

#: Few coordinates for each receiver: of 4 714 features 10 in each of 471 bins, and 1 in each of 4 714.
FEW, FEWEST = 471, 4714


def by_budget(
    series: str,
    budgets: Mapping[float, float],
    settings: Mapping[str, object],
    one_seed: Sequence[float] = (),
) -> list[Row]:
    """Return a line of Lumos with the printed gains over 0.5, and over central training at 2.

    Args:
        budgets: The epsilon of the runs, by the one that is asked for.
        one_seed: Those that are asked for with 1 seed.
    """
    rows = []
    for asked, epsilon in budgets.items():
        gain = () if asked == 0.5 else compared("accuracy", {f"{series} 0.5": GAINS["supervised"][asked]})
        central = compared("accuracy", {"central 0.5": -16.29}) if asked == 2 else ()
        own = {**settings, "epsilon": epsilon}
        seeds = (0,) if asked in one_seed else None
        rows.append(point(series, asked, "lumos", settings=own, relative=(*gain, *central), seeds=seeds))
    return rows


def with_bins(bins: int, one_seed: Sequence[float] = ()) -> list[Row]:
    """Return a line with unbiased decoding and this many bins."""
    settings = {"decode": "unbiased", "pad_bins": bins}
    return by_budget(f"{bins} bins", {epsilon: epsilon for epsilon in EPSILONS}, settings, one_seed)


FIG5_UNBIASED = Runs(
    name="fig5_unbiased",
    title="Lumos with unbiased decoding and few coordinates for each receiver, by epsilon on Facebook, GCN",
    source="the texts on Fig. 5 (gains over epsilon 0.5) and on Fig. 3 (difference from central training)",
    notes=paragraphs("""
        The decoding is the unbiased one of the paper. Two settings differ from the paper and leave epsilon
        as it is: 0, a public guess of a feature's mean, stands for a coordinate that was not sent
        (unsent_value=0), and all clients have the same large number of bins (pad_bins), so that a receiver
        gets few coordinates with more budget each.

        The number of bins of the better line was chosen with epsilon 2 by the validation nodes of seeds 100
        and 101. The other line has more noise.

        Bits not read (decode=unread) is Lumos without the bits: embeddings are exchanged as always, and
        every feature of a neighbour is read as 0. Own features are a network of each node's own features,
        without any message. These two and central training do not depend on epsilon; the same run stands at
        both ends of their lines, with 1 seed at the second end.

        At most 60 epochs, and the line of 4 714 bins has 1 seed with epsilon 1 and 4, for time; as for fig3
        otherwise.
    """),
    metrics=("accuracy",),
    x="epsilon",
    seeds=range(3),
    options={**FACEBOOK, **SUPERVISED, "rounds": 60},
    settings=SCORED,
    quick=QUICK,
    rows=(
        *with_bins(FEW),
        *with_bins(FEWEST, one_seed=(1, 4)),
        *levels("bits not read", "lumos", {"decode": "unread", "pad_bins": FEWEST}, last_seeds=(0,)),
        *levels("own features", "own_features", OWN_FEATURES["supervised"], last_seeds=(0,)),
        *levels("central", "central", {**GCN, **ADAM}, last_seeds=(0,)),
    ),
)


# ---- Fig. 5 with 128 features, and with the encoder of the authors' program -------------------------------

FEATURES = 128
#: Features in [-1, 1], and the middle of the bounds for one that is not sent.
DENSE = {"feature_low": -1.0, "feature_high": 1.0, "unsent_value": 0.0, "decode": "unbiased"}


#: What the authors' program spends on a receiver, by the epsilon that is asked for.
PROGRAMS_BUDGETS = {epsilon: FEATURES * math.exp(epsilon) for epsilon in EPSILONS}

FIG5_128 = Runs(
    name="fig5_128",
    title="Lumos on Facebook with 128 features, by the epsilon that is asked for, GCN",
    source="the texts on Fig. 5 (gains over epsilon 0.5) and on Fig. 3 (difference from central training)",
    notes=paragraphs("""
        The widely used version of the graph has 128 features and is not available to us; the projections of
        the 4 714 features on their first 128 singular vectors stand in its place (facebook_128), in [-1, 1].

        The encoder of the authors' program spends 128 e^epsilon on each receiver where epsilon is asked for -
        211, 348, 946 and 6 989 for 0.5, 1, 2 and 4. Its rows have these budgets (epsilon), all coordinates
        for every receiver (pad_bins=1) and unbiased decoding.

        The rows of the paper's encoder have the epsilon that is asked for, and unbiased decoding with the
        middle of the bounds for what is not sent.

        Own features and central training do not depend on epsilon; the same run stands at both ends of their
        lines, with 1 seed at the second end. At most 60 epochs; as for fig3 otherwise.
    """),
    metrics=("accuracy",),
    x="epsilon asked for",
    seeds=range(3),
    options={**FACEBOOK, **SUPERVISED, "data": "facebook_128", "rounds": 60},
    settings=SCORED,
    quick=QUICK,
    rows=(
        *by_budget("the program's encoder", PROGRAMS_BUDGETS, {**DENSE, "pad_bins": 1}),
        *by_budget("the paper's encoder", {0.5: 0.5, 2: 2}, DENSE),
        *levels("own features", "own_features", OWN_FEATURES["supervised"], last_seeds=(0,)),
        *levels("central", "central", {**GCN, **ADAM}, last_seeds=(0,)),
    ),
)


# ---- ours: release a prediction ----------------------------------------------------------------------------


def released_predictions() -> list[Row]:
    """Return the method of ours by epsilon, own features at both ends, and the rows of Lumos of fig5."""
    ours = [
        point("release a prediction", epsilon, "prediction_release", settings={"epsilon": epsilon})
        for epsilon in EPSILONS
    ]
    level = levels("own features", "own_features", OWN_FEATURES["supervised"])
    lumos_rows = [
        replace(row, panel="", relative=(), seeds=FIG5.seeds_of(row), options=FIG5.options_of(row))
        for row in by_epsilon("supervised", "Lumos", {})
    ]
    return [*ours, *level, *lumos_rows]


FIG5_RELEASE = Runs(
    name="fig5_release",
    title="Release a prediction by epsilon on Facebook, next to Lumos with GCN",
    source="nothing: the method is ours, and no paper prints a figure of it",
    notes=paragraphs("""
        prediction_release trains a network of each node's own features, and every client sends to
        its neighbours, once, the class that the network predicts for its node, under randomised response. Its
        epsilon is against all receivers together; that of Lumos is against each receiver of noised
        features alone, and does not cover embeddings. No epsilon covers gradients, in either.

        The network and its training are those of own features, which do not depend on epsilon; the same
        run stands at both ends of their line. A run ends after 40 epochs without a better validation
        score, and classes are released in round 40, which is always reached.

        The rows of Lumos are those of fig5, with at most 60 epochs.
    """),
    metrics=("accuracy",),
    x="epsilon",
    seeds=range(5),
    options={**FACEBOOK, **SUPERVISED, "rounds": 300},
    settings=SCORED,
    quick=QUICK,
    runs_in=FIG5.run_folder,
    rows=tuple(released_predictions()),
)


# ---- Fig. 6: without trimming, and without virtual nodes ---------------------------------------------------


def ablation(task: str, backbone: str, gain: float, seeds: int = 1, **options: int) -> tuple[Row, ...]:
    """Return Lumos, Lumos without trimming and without virtual nodes; gain: the printed one over no
    virtual nodes; seeds: their number.
    """
    label = f"{task} {backbone}"
    options_of_rows = {**options, **TASKS[task]}
    settings = GCN if backbone == "GCN" else GAT
    untrimmed, no_virtual = f"{label}, without trimming", f"{label}, without virtual nodes"
    changes: dict[str, dict[str, object]] = {
        label: {},
        untrimmed: {"balancer": "none"},
        no_virtual: {"virtual_nodes": False},
    }
    gains = Relative(untrimmed), Relative(no_virtual, {"score": gain})
    return tuple(
        Row(
            name,
            "lumos",
            options=options_of_rows,
            settings={**settings, **change},
            seeds=range(seeds),
            relative=gains if name == label else (),
        )
        for name, change in changes.items()
    )


FIG6 = Runs(
    name="fig6",
    title="Lumos without tree trimming, and without virtual nodes, on Facebook",
    source="the text on Fig. 6, which prints the gain over no virtual nodes",
    notes=paragraphs("""
        Supervised rows show the accuracy, unsupervised ones (link prediction) the AUC.

        Of trimming the paper says that it changes less than 0.01 % everywhere.

        Without virtual nodes a client learns on its own node and the neighbours that are assigned to it, as
        one neighbourhood. The paper takes the original ego network; whether trimmed, it does not say.

        At most 60 epochs, with GAT 15, and 5 seeds for supervised GCN, 3 for supervised GAT and 1 for
        unsupervised rows, for time; as for fig3 and fig4 otherwise.
    """),
    metrics=("score",),
    called={"score": "accuracy or AUC"},
    options={**FACEBOOK, "rounds": 60},
    settings={"heads": 4, **SCORED},
    quick=QUICK,
    rows=(
        *ablation("supervised", "GCN", 13.73, seeds=5),
        *ablation("supervised", "GAT", 13.10, seeds=3, rounds=15),
        *ablation("unsupervised", "GCN", 8.26),
        *ablation("unsupervised", "GAT", 8.36, rounds=15),
        *(
            Row(
                f"{task}, own features",
                "own_features",
                options=TASKS[task],
                settings=OWN_FEATURES[task],
                seeds=range(5 if task == "supervised" else 1),
            )
            for task in TASKS
        ),
    ),
)


#: Every tree filled up to the largest workload, next to the rows of fig3, in whose folder the runs are.
TRIMMED, FILLED = "GCN, Lumos", "GCN, Lumos, filled trees"
FIG6_FILLED = Runs(
    name="fig6_filled",
    title="Lumos with trees that are filled up to the largest workload, on Facebook, GCN",
    source="nothing: filling trees is ours, and no paper prints a figure of it",
    notes=paragraphs("""
        fill_trees lets every client take further edges into its tree after balancing, as many as the client
        with the most has. The largest workload stays.

        Lumos and own features are those of fig3; the settings are those of fig3 otherwise.
    """),
    metrics=("accuracy",),
    seeds=range(3),
    options=FIG3.options,
    settings=FIG3.settings,
    quick=QUICK,
    runs_in=FIG3.run_folder,
    rows=(
        Row("own features", "own_features", settings=OWN_FEATURES["supervised"]),
        Row(TRIMMED, "lumos", settings=GCN),
        Row(
            FILLED,
            "lumos",
            settings={**GCN, "fill_trees": True},
            relative=(Relative(TRIMMED),),
        ),
    ),
)


# ---- Fig. 8: communication and time ------------------------------------------------------------------------

EMBEDDINGS, SECONDS = "details.clients.embeddings.mean", "seconds.per_round"
#: What trimming saves, in percent.
SAVED = {
    "supervised": {EMBEDDINGS: -34.19, SECONDS: -13.32},
    "unsupervised": {EMBEDDINGS: -27.34, SECONDS: -10.34},
}


def costs(task: str, *, quick_mcmc: bool) -> tuple[Row, ...]:
    """Return the balancers, each compared with no trimming."""

    def row(series: str, *, quick: bool = True, **settings: object) -> Row:
        saved = (Relative(f"{task}, without trimming", SAVED[task]),)
        return Row(
            f"{task}, {series}",
            "lumos",
            options=TASKS[task],
            settings=settings,
            relative=() if series == "without trimming" else saved,
            quick=quick,
        )

    return (
        row("without trimming", balancer="none"),
        row("local", balancer="local"),
        row("mcmc, 1000 steps", balancer="mcmc", mcmc_steps=1000, quick=quick_mcmc),
        row("mcmc, 5000 steps", balancer="mcmc", mcmc_steps=5000, quick=False),
        row("oracle", balancer="oracle"),
    )


FIG8 = Runs(
    name="fig8",
    title="Communication and time of an epoch on Facebook, GCN, by balancer",
    source="the text on Fig. 8, which prints what trimming saves",
    notes=paragraphs("""
        The paper does not define a round of communication. Here it is an embedding that a client sends or
        receives in an epoch - of leaves, and in unsupervised training of neighbours and of clients that are
        none - as a mean over clients.

        Seconds are those of 20 epochs of all clients in one process, on one thread, with one evaluation
        among them; the paper's are of its simulation. Run it with --jobs 1 and no other program.

        The printed savings are of the paper's balancer, and stand next to each of ours.
    """),
    metrics=(EMBEDDINGS, SECONDS),
    called={EMBEDDINGS: "rounds of a client in an epoch", SECONDS: "seconds in an epoch"},
    options={**FACEBOOK, "rounds": 20},
    settings={"eval_every": 20},
    quick=Quick(seeds=(0,), options={"data": "social", "rounds": 3}, settings={"data.num_nodes": 300}),
    rows=(*costs("supervised", quick_mcmc=True), *costs("unsupervised", quick_mcmc=False)),
)

PAPER = Paper(
    name="lumos",
    title="Lumos: heterogeneity-aware federated graph learning over decentralized devices",
    authors="Pan, Zhu, Chu",
    venue="ICDE 2023, arXiv:2303.00492",
    items=(FIG3, FIG4, FIG5, FIG5_UNBIASED, FIG5_128, FIG5_RELEASE, FIG6, FIG6_FILLED, FIG7, FIG8),
)
