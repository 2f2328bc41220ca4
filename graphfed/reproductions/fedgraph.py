"""The figures of FedGraph: how sampling policies are learned, and accuracy against modelled time with them.

PubMed is not available; DBLP takes its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphfed.reproductions.base import (
    Paper,
    Printed,
    Quick,
    Relative,
    Row,
    Runs,
    Target,
    on_data,
    paragraphs,
    point,
    same_runs,
)
from graphfed.reproductions.fedgraph_returns import fig6
from graphfed.reproductions.policies import Policy

DATA = ("cora", "citeseer", "dblp")
#: Of every run, and of what a policy is learned on: one partition and one split.
RUN = {"partition": "overlapping", "split": "random_plain:0.6,0.2,0.2", "rounds": 300}
DRAWN_ONCE = {"partition_seed": 0, "split_seed": 0}
#: The paper assigns every node of a large graph to one client.
ONE_COPY = {"partition.copies": "one"}
ONE_COPY_OF = {"cora": {}, "citeseer": {}, "dblp": ONE_COPY}


def quick(clients: int = 3) -> Quick:
    """Return the short version, with one seed."""
    options = {"data": "digits", "clients": clients, "split": "default", "rounds": 3}
    return Quick(seeds=(0,), options=options)


# ---- policies ----------------------------------------------------------------------------------------------

#: The paper's target Lambda, a validation accuracy, by data set; of DBLP what central training reaches.
LAMBDA = {"cora": 0.9016, "citeseer": 0.879}


def ddpg(
    data: str,
    episodes: int,
    settings: Mapping[str, object] | None = None,
    *,
    suffix: str = "",
    clients: int = 20,
) -> Policy:
    """Return the paper's policy, learned by DDPG; settings: of the run, beyond those of every figure."""
    target = {"reward.target": LAMBDA[data]} if data in LAMBDA else {}
    return Policy(
        name=f"{data}-ddpg{suffix}",
        episodes=episodes,
        options={**RUN, "data": data, "clients": clients},
        settings={**DRAWN_ONCE, **target, **ONE_COPY_OF[data], **(settings or {})},
    )


#: 300 episodes are the paper's.
DDPG = {"cora": ddpg("cora", 300), "citeseer": ddpg("citeseer", 40), "dblp": ddpg("dblp", 40)}
#: The tuned constants (ours), as a fraction of a client's training nodes and a sampling probability: those
#: with the largest discounted return that a search by successive halving found, among 30 on Cora, 12 on
#: CiteSeer and DBLP, and 4 on the data of the balanced policy's items. The program no longer has the search;
#: benchmarks/results/fedgraph_constants.json is what is recorded of it.
TUNED = {
    data: {"policy": "constant", "batch_fraction": fraction, "probability": probability}
    for data, fraction, probability in (("cora", 0.05, 0.5), ("citeseer", 0.05, 0.25), ("dblp", 0.05, 0.25))
}
TUNED_INTERNAL = {
    data: {"policy": "constant", "batch_fraction": fraction, "probability": probability}
    for data, fraction, probability in (("dblp", 0.25, 0.5), ("social", 0.05, 0.5))
}

#: The generated graph of 100 000 nodes.
LARGE = {**DRAWN_ONCE, **ONE_COPY, "data.num_nodes": 100_000}
LARGE_RUN = {**RUN, "data": "social", "clients": 20, "rounds": 150}
LARGE_QUICK = Quick(seeds=(0,), options={"clients": 3, "rounds": 3}, settings={"data.num_nodes": 500})


def learned_in_few_episodes(name: str, data: str, settings: Mapping[str, object]) -> Policy:
    """Return FedGraph's policy for degrees of internal edges, learned in few and short episodes, because a
    round takes long.
    """
    return Policy(
        name=f"{name}-ddpg",
        episodes=10,
        options={**RUN, "clients": 20, "rounds": 100, "data": data},
        settings={**settings, "first_degrees": "internal"},
    )


#: The learned policies of the balanced policy's items, by data set. On Cora and CiteSeer those of `DDPG` are
#: compared.
BALANCED_POLICIES = {
    "dblp": learned_in_few_episodes("dblp-internal", "dblp", {**DRAWN_ONCE, **ONE_COPY}),
    "social": learned_in_few_episodes("social", "social", LARGE),
}


# ---- Figs. 7, 8 and 12: accuracy against time, by sampling scheme ------------------------------------------

#: Metrics in seconds of the time model, and in those of this machine's clock.
MODELLED = "facts.modelled_seconds"
NEAR, NEAR_WALL = f"to_target.near.{MODELLED}", "to_target.near.seconds"
EARLY, CENTRAL, PRINTED = (f"to_target.{target}.{MODELLED}" for target in ("early", "central", "printed"))
WHOLE = f"last.{MODELLED}"
WHOLE_CALLED = {WHOLE: "modelled s of all rounds"}
CURVES_CALLED = {MODELLED: "modelled seconds"}
NEAR_CALLED = {NEAR: "modelled s to near central"}
NEAR_WALL_CALLED = {NEAR_WALL: "wall s to near central"}

FULL, GRAPHSAGE, FASTGCN, CONSTANT, BALANCED = (
    {"policy": policy} for policy in ("full", "graphsage", "fastgcn", "constant", "balanced")
)
CENTRAL_TRAINING = {"optimizer": "adam", "lr": 0.01, "local_steps": 1}

NEAR_CENTRAL = Target(row="central", less=0.01)
DBLP_NOTE = ("DBLP takes PubMed's place; every node is at one client, as in the paper's large graphs.",)


def schemes(learned: Policy, tuned: Mapping[str, object], *, early: bool = False) -> tuple[Row, ...]:
    """Return FedGraph and the other sampling schemes, and central training.

    Args:
        tuned: The settings of the tuned constant.
        early: Whether the text prints when the schemes reach 75 %.
    """

    # The text has FedGraph at 75 % after about 5 s, and the others after more than 10 s.
    def scheme(label: str, settings: Mapping[str, object], *, slower: bool = False) -> Row:
        return Row(
            label,
            "fedgraph",
            settings=settings,
            printed={EARLY: Printed(10)} if slower else {},
            relative=(Relative("FedGraph", {EARLY: 100} if slower else {}),),
        )

    return (
        Row("FedGraph", "fedgraph", policy=learned, printed={EARLY: Printed(5)} if early else {}),
        scheme("tuned constant", tuned),
        scheme("full batches", FULL, slower=early),
        scheme("GraphSAGE", GRAPHSAGE, slower=early),
        scheme("FastGCN", FASTGCN, slower=early),
        scheme("constant", CONSTANT),
        Row("central", "central", settings=CENTRAL_TRAINING),
    )


#: What the figures of accuracy against time share.
AGAINST_TIME: dict[str, Any] = {
    "metrics": ("accuracy", NEAR, NEAR_WALL, WHOLE),
    "called": {**NEAR_CALLED, **NEAR_WALL_CALLED, **WHOLE_CALLED, **CURVES_CALLED},
    "against": MODELLED,
    "seeds": range(3),
}


def fig7(data: str) -> Runs:
    """Return the schemes with 20 clients on a data set."""
    return Runs(
        name="fig7",
        title="Accuracy against modelled time by sampling scheme, 20 clients",
        source=(
            "Fig. 7, whose curves cannot be read off, and the text - on Cora FedGraph needs about 5 s to 75 "
            "%, each of the others more than 10 s"
        ),
        notes=(
            *paragraphs("""
                Policies of 300 episodes on Cora and of 40 on CiteSeer and DBLP (fig6), where the paper has
                300. Seeds are of weights, dropout and samples; there is one partition and one split, for
                which the policies are learned.

                Seconds are modelled - what a client computes and sends in a round, at 10^9 operations and
                1.25 * 10^8 bytes a second at the median, the fastest twice and the slowest half as fast; a
                round takes as long as the slowest client. Wall seconds are of one process that does the work
                of all clients, evaluations with it; sampling saves much less of these, or nothing. The
                paper's are of 20 machines with a GPU each.

                near central is 1 point below the best validation accuracy of central training with the same
                steps, mean over the seeds. A run that needs fewer seconds by sampling less has seen less in
                as many rounds.

                Hidden width 16, dropout 0.5, Adam 0.01, 1 local step, 300 rounds; weight decay 5e-4, our
                default, as the paper states none (Cora, full batches, seed 0 - best validation accuracy 88.9
                %, and 88.5 % without). Scored on the weights of the round that is best on the validation
                nodes.

                Nodes are split 60/20/20 once, before they are partitioned among the clients, so that all
                copies of one are in the same part; the paper splits at every client. FedGraph is the policy
                by DDPG, the actor after the ten episodes in a row with the largest mean return (ours; the
                paper does not say which it takes), tuned constant the best constant that an earlier
                version searched (ours), chosen by the discounted return like the policy, and not by the time
                to a target that is shown; constant takes batches of 256 and half of the neighbours.
            """),
            *(DBLP_NOTE if data == "dblp" else ()),
        ),
        **AGAINST_TIME,
        targets={
            "near": NEAR_CENTRAL,
            "central": Target(row="central"),
            "printed": Target(share=LAMBDA[data]) if data in LAMBDA else None,
            "early": Target(share=0.75) if data == "cora" else None,
        },
        options={**RUN, "clients": 20},
        settings={**DRAWN_ONCE, **ONE_COPY_OF[data]},
        quick=quick(),
        rows=schemes(DDPG[data], TUNED[data], early=data == "cora"),
    )


FIG7 = on_data(fig7, DATA)

FIG7_TARGETS = tuple(
    same_runs(
        item,
        Runs,
        "fig7_targets",
        title="Modelled seconds to other targets, of the runs of fig7",
        source="The text on Fig. 7; the targets of section 5.2",
        notes=paragraphs("""
            The paper's target is 90.16 % on Cora and 87.9 % on CiteSeer, on a split of its own; 75 % is of
            the text, on Cora only. Where the paper says more than 10 s, 10 is printed, and more than twice
            as long, 100 percent. Its seconds are of its machines, ours of the time model of fig7.

            central is the best validation accuracy of central training, mean over the seeds - a maximum over
            300 rounds, which an equally good run reaches by luck only.
        """),
        metrics=(EARLY, CENTRAL, PRINTED),
        called={
            EARLY: "modelled s to 75 %",
            CENTRAL: "modelled s to central",
            PRINTED: "modelled s to the paper's target",
        },
    )
    for item in FIG7
)


FIG8 = Runs(
    name="fig8",
    title="Accuracy against modelled time by sampling scheme, 50 clients, Cora",
    source="Fig. 8; its values cannot be read off",
    notes=paragraphs("""
        FedGraph's policy is learned for these 50 clients in 40 episodes where the paper has 300; the tuned
        constant is the one found with 20 clients. Otherwise as fig7.

        What the paper finds - FedGraph is still ahead of the other schemes.
    """),
    **AGAINST_TIME,
    targets={"near": NEAR_CENTRAL},
    options={**RUN, "data": "cora", "clients": 50},
    settings=DRAWN_ONCE,
    quick=quick(clients=4),
    rows=schemes(ddpg("cora", 40, suffix="-50-clients", clients=50), TUNED["cora"]),
)

THREE_CLASSES = {"partition.classes": 3}

FIG12 = Runs(
    name="fig12",
    title="Accuracy against modelled time, three classes at each client, 20 clients, Cora",
    source="Fig. 12; its values cannot be read off",
    notes=paragraphs("""
        FedGraph's policy is learned for this partition in 20 episodes where the paper has 300; the tuned
        constant is the one found with all classes. Otherwise as fig7.

        Every client has nodes of 3 of the 7 classes; how many the paper takes it does not say.
        Predictions are scored at the clients, so a client is asked about its own classes only, though the
        model does not know which these are.

        What the paper finds - FedGraph is still ahead of the other schemes.
    """),
    **AGAINST_TIME,
    targets={"near": NEAR_CENTRAL},
    options={**RUN, "data": "cora", "clients": 20},
    settings={**DRAWN_ONCE, **THREE_CLASSES},
    quick=quick(),
    rows=schemes(ddpg("cora", 20, THREE_CLASSES, suffix="-3-classes"), TUNED["cora"]),
)


# ---- Figs. 9 and 11: by the heterogeneity of sizes, and by the number of layers ----------------------------


def line(
    series: str,
    key: str,
    values: Sequence[float],
    settings: Mapping[str, object],
    *,
    method: str = "fedgraph",
    policies: Sequence[Policy | None] = (),
) -> list[Row]:
    """Return a line by the values of a setting; policies: one for each value, or none."""
    each = policies or [None] * len(values)
    return [
        point(series, value, method, settings={**settings, key: value}, policy=policy)
        for value, policy in zip(values, each, strict=True)
    ]


def schemes_over(key: str, values: Sequence[float]) -> list[Row]:
    """Return the schemes without a learned policy, a line each."""
    return [
        *line("full batches", key, values, FULL),
        *line("GraphSAGE", key, values, GRAPHSAGE),
        *line("FastGCN", key, values, FASTGCN),
        *line("constant", key, values, CONSTANT),
    ]


VARIANCE = "partition.variance"
VARIANCES = (0.1, 0.5, 1)

FIG9 = Runs(
    name="fig9",
    title="Modelled seconds to a target by the heterogeneity of sizes, 20 clients, Cora",
    source="Fig. 9; its values cannot be read off",
    notes=paragraphs("""
        FedGraph's policies are learned for each partition, with 0.1 in 300 episodes as the paper's, with 0.5
        and 1 in 20; the tuned constant is the one found with 0.1. Otherwise as fig7.

        The target is 2 points below the best validation accuracy of central training, which does not depend
        on the partition. The paper has one that most schemes reach.

        The paper calls 0.1, 0.5 and 1 low, medium and high. The fractions are truncated to [0.05, 1], so
        their mean falls with the variance, from 0.67 to 0.55; docs/data.md has the sizes.

        What the paper finds - every scheme takes longer the more heterogeneous sizes are, FedGraph the
        least.
    """),
    metrics=(NEAR, NEAR_WALL, "accuracy"),
    called={NEAR: "modelled s to the target", NEAR_WALL: "wall s to the target"},
    targets={"near": Target(row="central", less=0.02)},
    x="variance of the clients' fractions of the nodes",
    seeds=range(3),
    options={**RUN, "data": "cora", "clients": 20},
    settings=DRAWN_ONCE,
    quick=quick(),
    rows=(
        *line(
            "FedGraph",
            VARIANCE,
            VARIANCES,
            {},
            policies=(
                DDPG["cora"],
                ddpg("cora", 20, {VARIANCE: 0.5}, suffix="-variance-0.5"),
                ddpg("cora", 20, {VARIANCE: 1}, suffix="-variance-1"),
            ),
        ),
        *line("tuned constant", VARIANCE, VARIANCES, TUNED["cora"]),
        *schemes_over(VARIANCE, VARIANCES),
        point("central", 0.1, "central", label="central", settings=CENTRAL_TRAINING),
    ),
)

LAYERS = (2, 3, 4)

FIG11 = Runs(
    name="fig11",
    title="Accuracy and modelled time by the number of graph layers, 20 clients, Cora",
    source="Fig. 11; its values cannot be read off",
    notes=paragraphs("""
        FedGraph's policies are learned for each depth, 2 layers in 300 episodes as the paper's, 3 and 4 in
        20; a tuned constant was found for 2 only. Otherwise as fig7.

        Of L graph layers L - 1 share embeddings. GraphSAGE takes 25 neighbours in the last layer and 10 in
        the others.

        What the paper finds - time grows with depth, accuracy hardly changes, on CiteSeer it falls.
    """),
    metrics=("accuracy", WHOLE),
    called=WHOLE_CALLED,
    x="graph layers",
    seeds=range(3),
    options={**RUN, "data": "cora", "clients": 20},
    settings=DRAWN_ONCE,
    quick=quick(),
    rows=(
        *line(
            "FedGraph",
            "layers",
            LAYERS,
            {},
            policies=(
                DDPG["cora"],
                ddpg("cora", 20, {"layers": 3}, suffix="-3-layers"),
                ddpg("cora", 20, {"layers": 4}, suffix="-4-layers"),
            ),
        ),
        *line("tuned constant", "layers", LAYERS[:1], TUNED["cora"]),
        *schemes_over("layers", LAYERS),
        *line("central", "layers", LAYERS, CENTRAL_TRAINING, method="central"),
    ),
)


# ---- Fig. 10: what neighbours at other clients see ---------------------------------------------------------


def fig10(data: str) -> Runs:
    """Return runs that send hidden embeddings, all of them, and none, with FedGraph's policy and with full
    batches.
    """
    learned = DDPG[data]
    gain = {} if data == "dblp" else {"accuracy": 10}

    def fedgraph(share: str, settings: Mapping[str, object], *relative: Relative) -> Row:
        return Row(f"{share}, FedGraph", "fedgraph", settings=settings, policy=learned, relative=relative)

    def full(share: str, settings: Mapping[str, object], *relative: Relative) -> Row:
        return Row(f"{share}, full batches", "fedgraph", settings={**FULL, **settings}, relative=relative)

    return Runs(
        name="fig10",
        title="Accuracy against modelled time by what neighbours at other clients see, 20 clients",
        source=(
            "Fig. 10, whose curves cannot be read off, and the text - sharing gains about 10 % of accuracy "
            "on Cora and CiteSeer over none, and sharing from the first layer on little more"
        ),
        notes=(
            *paragraphs("""
                Policies of 300 episodes on Cora and of 40 on CiteSeer and DBLP, learned with
                sent_embeddings=hidden, as in fig7, and full batches. Otherwise as fig7.

                hidden is FedGraph, all its allShare, which sends the features' first transformation too,
                none its nonShare, whose clients see the edges among their own nodes only, in predictions
                too.

                Whether the paper's 10 % are points or percent of the accuracy it does not say; percent here.
            """),
            *(DBLP_NOTE if data == "dblp" else ()),
        ),
        metrics=("accuracy", NEAR, WHOLE),
        called={**NEAR_CALLED, **WHOLE_CALLED, **CURVES_CALLED},
        targets={"near": NEAR_CENTRAL},
        against=MODELLED,
        seeds=range(3),
        options={**RUN, "clients": 20},
        settings={**DRAWN_ONCE, **ONE_COPY_OF[data]},
        quick=quick(),
        rows=(
            fedgraph("hidden", {}, Relative("none, FedGraph", gain)),
            fedgraph("all", {"sent_embeddings": "all"}, Relative("hidden, FedGraph")),
            fedgraph("none", {"sent_embeddings": "none"}),
            full("hidden", {}, Relative("none, full batches")),
            full("all", {"sent_embeddings": "all"}, Relative("hidden, full batches")),
            full("none", {"sent_embeddings": "none"}),
            Row("central", "central", settings=CENTRAL_TRAINING),
        ),
    )


FIG10_DISJOINT = Runs(
    name="fig10_disjoint",
    title=(
        "Accuracy against modelled time by what neighbours at other clients see, every node at one of 20 "
        "clients, Cora"
    ),
    source="ours; the paper's clients have copies of Cora's nodes, and 0.67 of these each",
    notes=paragraphs("""
        As fig10 with full batches, but partitioned without copies, so that most edges join two clients. In
        fig10 every client has two thirds of the graph, so that little is missing.
    """),
    metrics=("accuracy", WHOLE),
    called={**WHOLE_CALLED, **CURVES_CALLED},
    against=MODELLED,
    seeds=range(3),
    options={**RUN, "data": "cora", "clients": 20},
    settings={**DRAWN_ONCE, **ONE_COPY},
    quick=quick(),
    rows=(
        Row("hidden", "fedgraph", settings=FULL, relative=(Relative("none"),)),
        Row("all", "fedgraph", settings={**FULL, "sent_embeddings": "all"}, relative=(Relative("hidden"),)),
        Row("none", "fedgraph", settings={**FULL, "sent_embeddings": "none"}),
        Row("central", "central", settings=CENTRAL_TRAINING),
    ),
)

# ---- ours: balanced clients --------------------------------------------------------------------------------

NEAR_MEAN, NEAR_BYTES = f"to_target_mean.near.{MODELLED}", "to_target.near.bytes"
LONGER = {"rounds": 300}
#: Of the constant policy, by benchmarks/fedgraph_balance.py on validation nodes.
FOR_TIME = {"cora": {"batch": 128, "probability": 1.0}, "citeseer": {"batch": 256, "probability": 1.0}}


def balanced(data: str) -> Runs:
    """Return the balanced policy and other schemes with 20 clients on a data set."""
    degrees = {} if data in LAMBDA else {"first_degrees": "internal"}
    fixed = {"full batches": FULL, "GraphSAGE": GRAPHSAGE, "FastGCN": FASTGCN, "constant": CONSTANT}
    tuned = {"constant for time": {**CONSTANT, **FOR_TIME[data]}} if data in FOR_TIME else {}
    longer_rounds = {"balanced, round_time=0.2": {**BALANCED, "round_time": 0.2}} if data == "social" else {}
    policies: dict[str, Any] = {"balanced": BALANCED, **longer_rounds, **fixed, **tuned}
    best = "central" if data in LAMBDA else "full batches"
    early = Target(share=0.75) if data == "cora" else Target(row=best, less=0.1)
    longer = {} if data in LAMBDA else dict.fromkeys(policies.keys() - {best}, LONGER)
    rows = [Row(n, "fedgraph", longer.get(n, {}), {**p, **degrees}) for n, p in policies.items()]
    if data in BALANCED_POLICIES:
        rows.append(Row("FedGraph", "fedgraph", LONGER, degrees, policy=BALANCED_POLICIES[data]))
        rows.append(Row("tuned constant", "fedgraph", LONGER, {**degrees, **TUNED_INTERNAL[data]}))
    if data in LAMBDA:
        rows.append(Row("central", "central", LONGER, CENTRAL_TRAINING))
    return Runs(
        name="balanced",
        title="Balanced clients, modelled time and bytes to a target, 20 clients",
        source="ours; the paper has no such policy",
        notes=paragraphs("""
            As fig7, with half of the rounds and other seeds. On Cora and CiteSeer runs have its settings. On
            the other data every node is at one client, the first layer has internal degrees, the target is 1
            point below full batches, and the rows with short rounds have 300 of them. constant for time was
            the fastest to a target on validation nodes, constant is as in fig7. Times have measured rounds
            too. early is the 75 % of the paper's text on Cora, and 10 points below the row of near on other
            data.

            On Cora and CiteSeer the policies of fig7 are compared. On the other data FedGraph's policy is
            learned in 10 episodes of 100 rounds, for time, where the paper has 300 of 300; tuned constant was
            the best of 4 in 7 such episodes of an earlier version. Their seconds do not have those of
            learning.
        """),
        metrics=("accuracy", EARLY, NEAR, NEAR_MEAN, NEAR_BYTES, WHOLE),
        called={NEAR_BYTES: "MB to near", **WHOLE_CALLED, **CURVES_CALLED},
        divided_by={NEAR_BYTES: 1e6},
        against=MODELLED,
        targets={"early": early, "near": Target(row=best, less=0.01)},
        seeds=range(10 if data in LAMBDA else 5),
        options={**RUN, "clients": 20, "rounds": 150},
        settings={**DRAWN_ONCE, **ONE_COPY_OF.get(data, ONE_COPY)},
        quick=quick(),
        rows=tuple(rows),
    )


BALANCED_LARGE = replace(
    balanced("social"),
    name="balanced_large",
    title="Balanced clients, a generated social network of 100 000 nodes, 20 clients",
    options=LARGE_RUN,
    settings=LARGE,
    seeds=range(5),
    quick=LARGE_QUICK,
)

PAPER = Paper(
    name="fedgraph",
    title="FedGraph: federated graph learning with intelligent sampling",
    authors="Chen, Li, Miyazaki, Wu",
    venue="IEEE Transactions on Parallel and Distributed Systems 33(8), 2022",
    items=(
        *on_data(lambda data: fig6(DDPG[data], quick()), DATA),
        *FIG7,
        *FIG7_TARGETS,
        FIG8,
        FIG9,
        *on_data(fig10, DATA),
        FIG10_DISJOINT,
        FIG11,
        FIG12,
        *on_data(balanced, DATA),
        BALANCED_LARGE,
    ),
)
