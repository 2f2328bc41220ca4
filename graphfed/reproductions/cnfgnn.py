"""The tables and figures of CNFGNN: forecasting errors, bytes and operations, on METR-LA and PEMS-BAY.

On whole networks training is as in the paper. On parts of them it is shorter, to save time, as `Budget` says.
The paper prints no errors for these parts, so only the percentages by which CNFGNN is above the others are
compared with the paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphfed.reproductions import cnfgnn_sensors as shared
from graphfed.reproductions.base import (
    Curves,
    Paper,
    Printed,
    Relative,
    Row,
    Runs,
    on_data,
    paragraphs,
    point,
    same_runs,
)

RMSE = "rmse_as_read"
CALLED = {RMSE: "RMSE, as read (mph)"}
BYTES_CALLED = {"bytes_to_best": "GB of 2^30 bytes to the best round"}
#: A missing reading is taken for a speed of 0, as in the paper.
AS_READ = {"missing": "as_read"}


# ---- Tables 7 and 10, Fig. 3: methods and training strategies ----------------------------------------------


@dataclass(frozen=True)
class Budget:
    """How long rows of Table 7 are trained on a data set.

    Attributes:
        rounds: Of every row.
        settings: Of every row.
        small: Of the baselines with 63 000 weights.
        large: Of those with 727 000.
        large_rounds: Their rounds; None for as many as the others.
        strategies: Of CNFGNN and its other training strategies.
        alternating: Of those strategies in which clients and server train in turns.
        server_rounds: R_s of single rows, if it is not 1.
        seeds: Of CNFGNN and of the small baselines; in Table 9 of every row.
    """

    rounds: int
    settings: Mapping[str, object]
    small: Mapping[str, object] = field(default_factory=dict)
    large: Mapping[str, object] = field(default_factory=dict)
    large_rounds: int | None = None
    strategies: Mapping[str, object] = field(default_factory=dict)
    alternating: Mapping[str, object] = field(default_factory=dict)
    server_rounds: Mapping[str, int] = field(default_factory=dict)
    seeds: Sequence[int] = (0,)


TABLE7_BUDGETS = {
    "metr_la_week": Budget(
        rounds=10,
        settings={"every": 4},
        small={"batch": 32},
        large={"batch": 32, "every": 16, "eval_every": 3, "precision": "bfloat16"},
        large_rounds=6,
        strategies={"batch": 32},
        alternating={"server_batch": 12},
        seeds=range(3),
    ),
    "metr_la_20": Budget(
        rounds=20,
        settings={"every": 32, "eval_every": 4},
        large={"batch": 32, "every": 128, "eval_every": 4, "precision": "bfloat16"},
        large_rounds=8,
    ),
    "pems_bay_67": Budget(
        rounds=8,
        settings={"every": 64, "eval_every": 4},
        small={"batch": 32},
        large={"batch": 32, "every": 128, "eval_every": 3, "precision": "bfloat16"},
        large_rounds=3,
        strategies={"batch": 32},
        alternating={"server_batch": 12},
    ),
    "metr_la": Budget(rounds=500, settings={"patience": 20}, server_rounds={"AT without FedAvg": 20}),
    "pems_bay": Budget(
        rounds=200, settings={"patience": 20}, server_rounds={"CNFGNN": 20, "AT without FedAvg": 20}
    ),
}

#: On the whole networks: the error, of FMTL and of the strategies the GB up to the best round, and that round
#: (Tables 7, 8 and 10).
TABLE7 = {
    "metr_la": {
        "GRU central, 63K": (11.730,),
        "GRU central, 727K": (11.787,),
        "GRU + GN central": (11.471,),
        "GRU local, 63K": (11.801,),
        "GRU local, 727K": (12.224,),
        "GRU + FedAvg, 63K": (12.132,),
        "GRU + FedAvg, 727K": (12.058,),
        "GRU + FMTL, 63K": (11.548, 99.201, 279),
        "GRU + FMTL, 727K": (11.570, 722.137, 176),
        "CNFGNN": (11.487, 222.246, 46),
        "SL": (12.186, 307.627, 65),
        "SL + FedAvg": (11.631, 343.031, 71),
        "AT without FedAvg": (11.912, 2434.985, 49),
    },
    "pems_bay": {
        "GRU central, 63K": (4.124,),
        "GRU central, 727K": (4.128,),
        "GRU + GN central": (3.816,),
        "GRU local, 63K": (4.010,),
        "GRU local, 727K": (4.152,),
        "GRU + FedAvg, 63K": (4.512,),
        "GRU + FedAvg, 727K": (4.432,),
        "GRU + FMTL, 63K": (3.961, 57.823, 104),
        "GRU + FMTL, 727K": (3.955, 359.292, 56),
        "CNFGNN": (3.822, 237.654, 2),
        "SL": (3.914, 350.366, 31),
        "SL + FedAvg": (4.383, 80.200, 7),
        "AT without FedAvg": (4.003, 5221.576, 44),
    },
}


def percent_above(other: float, cnfgnn: float) -> float:
    """Return by how many percent the printed error of CNFGNN is above another one, to two decimals."""
    return round(100 * (cnfgnn / other - 1), 2)


def network_of(data: str) -> str:
    """Return the whole network that a data set is, or is a part of; the printed figures are of the whole
    network.
    """
    return "metr_la" if data.startswith("metr_la") else "pems_bay"


TABLE7_NOTES = paragraphs("""
    RMSE in miles per hour over all sensors, windows and 12 steps ahead. As read, with a missing reading
    taken for a speed of 0, in training and in the error, as in the paper.

    The paper trains on every window, for at most 500 rounds (METR-LA) or 200 (PEMS-BAY), and stops after 20
    without a better one. What is less here, for time, is said below.

    12 readings in, 12 out, 70, 10 and 20 percent of the windows in time, Adam 0.001, batches of 128 windows
    at a client and 48 at the server, R_c = 1.

    The rows that Table 7 does not have are those of table10 and fig3, which show the same runs, and two
    forecasts that learn next to nothing.

    FMTL is coupled by squared distances, lambda 0.1 as printed and one epoch in a round; the authors'
    program has distances, 0.01 and 5.

    Rows are not trained alike, so part of a difference may be that of their training. GRU + FedAvg has
    scheduled sampling from the first step on (teacher=1, as in the authors' program), all others
    teacher=1000, with which the decoder gets true readings practically always in runs as short as those
    recorded. Adam begins anew in every round at the clients of CNFGNN, SL, SL + FedAvg, AT without FedAvg,
    GRU + FedAvg and GRU + FMTL (client_state=reset), and is kept by GRU local, GRU central and GRU + GN
    central.
""")
TABLE7_NOTES_OF = {
    "metr_la_week": paragraphs("""
        Budget - the first week only, 207 sensors, 2 016 steps, whose gaps were filled by interpolation.
        Every 4th training window, 10 rounds, seeds 0 to 2 of CNFGNN and of the small baselines; the other
        strategies 1 seed. The large baselines (727K) 1 seed, every 16th window, 6 rounds of which every 3rd
        is validated, products in bfloat16; they are not trained to their end. R_s = 1.

        A week has 349 such windows, three batches of 128. So a client takes 32 at a time, and the server 12.

        Nothing is printed for a week. Printed is how far CNFGNN is from the others in the paper's METR-LA,
        computed from Tables 7 and 10.
    """),
    "metr_la_20": paragraphs("""
        Budget - 20 of 207 sensors over the full period, 1 seed, R_s = 1. Every 32nd training window and 20
        rounds, of which every 4th is validated; the large baselines (727K) every 128th window, 32 at a time,
        8 rounds, products in bfloat16.

        In the test part 13 percent of the readings are missing. RMSE leaves them out of the error; trained
        on, they are as read in both columns.

        Printed is how far CNFGNN is from the others in the paper's METR-LA with all 207 sensors, computed
        from Tables 7 and 10.
    """),
    "pems_bay_67": paragraphs("""
        Budget - 67 of 325 sensors over the full period, 1 seed. Every 64th training window, 32 at a time at
        a client and 12 at the server, 8 rounds of which every 4th is validated; the large baselines (727K)
        every 128th window, 3 rounds of which the last is validated, products in bfloat16. R_s = 1, where the
        paper has 20.

        Printed is how far CNFGNN is from the others in the paper's PEMS-BAY with all 325 sensors, computed
        from Tables 7 and 10.
    """),
    "metr_la": paragraphs("""
        As in the paper, of one seed; R_s = 1, of AT without FedAvg 20, which its printed total of bytes is
        of. CNFGNN against the others is computed from Tables 7 and 10.
    """),
    "pems_bay": paragraphs("""
        As in the paper, of one seed; R_s = 20. CNFGNN against the others is computed from Tables 7 and 10.
    """),
}


def table7(data: str) -> Runs:
    """Return the errors of all methods and training strategies on a data set."""
    budget = TABLE7_BUDGETS[data]
    errors = {label: figures[0] for label, figures in TABLE7[network_of(data)].items()}

    def printed(label: str) -> dict[str, Printed]:
        figures = TABLE7.get(data, {}).get(label, ())
        # Most rows have only the printed error; bytes and rounds are printed for a few.
        return dict(zip((RMSE, "bytes_to_best", "best_round"), map(Printed, figures), strict=False))

    def small(name: str, method: str) -> Row:
        label = f"{name}, 63K"
        settings = {**shared.SMALL, **budget.small}
        return Row(label, method, settings=settings, seeds=budget.seeds, printed=printed(label))

    def large(name: str, method: str) -> Row:
        label = f"{name}, 727K"
        options = {} if budget.large_rounds is None else {"rounds": budget.large_rounds}
        settings = {**shared.LARGE, **budget.large}
        return Row(label, method, options=options, settings=settings, printed=printed(label))

    def strategy(label: str, name: str | None = None, **fields: Any) -> Row:
        settings = {**shared.GRAPH_NETWORK, **budget.strategies}
        if name is not None:
            settings["strategy"] = name
        # These train clients and server in turns; the other strategies have no batches of the server.
        if name in (None, "at"):
            settings |= budget.alternating
        if label in budget.server_rounds:
            settings["server_rounds"] = budget.server_rounds[label]
        return Row(label, "cnfgnn", settings=settings, printed=printed(label), **fields)

    above = [
        Relative(other, {RMSE: percent_above(error, errors["CNFGNN"])})
        for other, error in errors.items()
        if other != "CNFGNN"
    ]
    plain = (Relative("last value"), Relative("historical average"))
    on_20 = data == "metr_la_20"
    return Runs(
        name="table7",
        title="Errors of an hour's forecasts",
        source="Table 7; of the strategies SL, SL + FedAvg and AT without FedAvg Table 10",
        notes=TABLE7_NOTES + TABLE7_NOTES_OF[data],
        metrics=("rmse", RMSE) if on_20 else (RMSE,),
        called={**CALLED, "rmse": "RMSE (mph)"} if on_20 else CALLED,
        options={"rounds": budget.rounds},
        settings={**AS_READ, "patience": 8, **budget.settings},
        quick=shared.QUICK,
        rows=(
            small("GRU central", "gru_central"),
            large("GRU central", "gru_central"),
            strategy("GRU + GN central", "centralised"),
            small("GRU local", "gru_local"),
            large("GRU local", "gru_local"),
            small("GRU + FedAvg", "gru_fedavg"),
            large("GRU + FedAvg", "gru_fedavg"),
            small("GRU + FMTL", "gru_fmtl"),
            large("GRU + FMTL", "gru_fmtl"),
            strategy("CNFGNN", seeds=budget.seeds, relative=(*above, *plain)),
            strategy("SL", "sl"),
            strategy("SL + FedAvg", "sl_fedavg"),
            strategy("AT without FedAvg", "at"),
            Row("last value", "last_value"),
            Row("historical average", "historical_average"),
        ),
    )


TABLE7_ITEMS = on_data(table7, shared.DATA)

STRATEGIES = ("CNFGNN", "GRU + GN central", "SL", "SL + FedAvg", "AT without FedAvg")

TABLE10 = tuple(
    same_runs(
        item,
        Runs,
        "table10",
        title="Errors, bytes and rounds by training strategy",
        source="Table 10, of FMTL Tables 7 and 8; rounds as in the paper's byte formulas",
        notes=paragraphs("""
            The runs of table7, whose notes say what budget they have. Bytes are those of set-up and of
            training up to the round that is best on the validation part.

            In the paper bytes follow from formulas with round numbers of weights (63 000, 64 000, 727 000);
            here they are counted.

            With fewer windows less of them is encodings and more is weights, so that bytes of different data
            do not compare.
        """),
        rows=(*STRATEGIES, "GRU + FMTL, 63K", "GRU + FMTL, 727K"),
        metrics=(RMSE, "bytes_to_best", "best_round"),
        called={**CALLED, **BYTES_CALLED, "best_round": "best round"},
        divided_by={"bytes_to_best": 2**30},
    )
    for item in TABLE7_ITEMS
)

FIG3 = tuple(
    same_runs(
        item,
        Curves,
        "fig3",
        title="Validation error by round and training strategy",
        source="Fig. 3, whose values cannot be read off",
        notes=paragraphs("""
            The runs of table7, whose notes say what budget they have. The paper draws the standardised loss;
            this is its root, in miles per hour.

            A round of AT trains a client once on every window, and the server once more; one of SL both
            together.
        """),
        rows=STRATEGIES,
        metrics=(RMSE,),
        called=CALLED,
    )
    for item in TABLE7_ITEMS
)


# ---- Table 7 with the same training in every row -----------------------------------------------------------

EQUAL_BUDGETS = {
    "metr_la_week": Budget(rounds=10, settings={"every": 16, "batch": 8, "server_batch": 8}),
    "metr_la_20": Budget(rounds=shared.ALIKE_ROUNDS, settings=shared.ALIKE_ON_20),
}
EQUAL_NOTES = paragraphs("""
    The rows of table7 with 63K weights, trained alike - windows, batches, rounds, learning rate, schedule
    and state of the optimiser. Scheduled sampling decays linearly over the first half of the steps that a
    row plans (teacher_fraction=0.5); then every decoder gets its own forecasts. Adam keeps its moments from
    round to round (client_state=keep). R_s = 1, as in the paper on METR-LA.

    GRU + FedAvg, as in table7, has teacher=1 and client_state=reset. CNFGNN, means, is ours.

    Budget, for three seeds - metr_la_week as for table7, every 16th training window, 8 at a time, 10 rounds;
    metr_la_20, every 96th, 25 at a time, 20 rounds, of which the last is validated and kept. Missing
    readings as for table7.
""")
EQUAL = {
    "GRU central": "gru_central",
    "GRU local": "gru_local",
    "GRU + FedAvg": "gru_fedavg",
    "GRU + FMTL": "gru_fmtl",
}


def equal(data: str) -> Runs:
    """Return the errors of CNFGNN and of the small baselines, all trained alike."""
    budget, other = EQUAL_BUDGETS[data], "GRU + FedAvg, as in table7"
    errors = {label.removesuffix(", 63K"): figures[0] for label, figures in TABLE7["metr_la"].items()}
    above = [Relative(label, {RMSE: percent_above(errors[label], errors["CNFGNN"])}) for label in EQUAL]
    above += [Relative(label) for label in (other, "CNFGNN, means", *shared.PLAIN)]
    unequal = {**shared.SMALL, "teacher_fraction": None, "teacher": 1.0, "client_state": "reset"}
    return Runs(
        name="equal",
        title="Errors of an hour's forecasts, with the same training in every row",
        source="Table 7",
        notes=EQUAL_NOTES,
        metrics=("rmse", RMSE) if data == "metr_la_20" else (RMSE,),
        called={**CALLED, "rmse": "RMSE (mph)"} if data == "metr_la_20" else CALLED,
        seeds=range(3),
        options={"rounds": budget.rounds},
        settings={**AS_READ, **shared.ALIKE, **budget.settings},
        quick=shared.QUICK,
        rows=(
            *(Row(label, method, settings=shared.SMALL) for label, method in EQUAL.items()),
            Row(other, "gru_fedavg", settings=unequal),
            Row("CNFGNN", "cnfgnn", settings=shared.GRAPH_NETWORK, relative=tuple(above)),
            Row("CNFGNN, means", "cnfgnn", settings={"network": "mean_network"}),
            *(Row(label, method, seeds=(0,)) for label, method in shared.PLAIN.items()),
        ),
    )


# ---- Table 9: only a part of the sensors is seen in training -----------------------------------------------

#: RMSE of GRU + FedAvg and of CNFGNN, by the percentage of sensors that training sees.
TABLE9 = {
    "metr_la": {
        5: (12.128, 13.931),
        25: (11.993, 12.013),
        50: (12.104, 11.815),
        75: (12.014, 11.676),
        90: (12.016, 11.629),
    },
    "pems_bay": {
        5: (5.087, 5.869),
        25: (4.863, 4.541),
        50: (4.847, 4.598),
        75: (4.859, 4.197),
        90: (4.866, 3.942),
    },
}
TABLE9_BUDGETS = {
    "metr_la_week": Budget(
        rounds=10,
        settings={"every": 8, "eval_every": 2, "batch": 32},
        alternating={"server_batch": 12},
        seeds=range(3),
    ),
    "metr_la_20": Budget(rounds=20, settings={"every": 32, "eval_every": 4}),
    "pems_bay_67": Budget(
        rounds=8, settings={"every": 64, "eval_every": 4, "batch": 32}, alternating={"server_batch": 12}
    ),
    "metr_la": Budget(rounds=500, settings={"patience": 20}, alternating={"server_rounds": 20}),
    "pems_bay": Budget(rounds=200, settings={"patience": 20}, alternating={"server_rounds": 20}),
}
TABLE9_NOTES = paragraphs("""
    Sensors in the order of their longitudes; the first so many percent are trained and validated on, all are
    tested, in miles per hour. Only the graph among them is seen in training (fig2).

    The FedAvg baseline has 63K weights, as Table 9 says; the authors' script has 727K.

    Rows are not trained alike, so part of a difference may be that of their training. GRU + FedAvg has
    scheduled sampling from the first step on (teacher=1, as in the authors' program), all others
    teacher=1000, with which the decoder gets true readings practically always in runs as short as those
    recorded. Adam begins anew in every round at the clients of all rows (client_state=reset).

    Missing readings as for table7.

    CNFGNN, means, is ours, and not in the paper - the graph network with means in the place of its sums over
    edges and sensors.
""")
TABLE9_NOTES_OF = {
    "metr_la_week": paragraphs("""
        Budget - the first week, interpolated, every 8th training window, 32 at a time at a client and 12 at
        the server, 10 rounds of which every 2nd is validated, 3 seeds. R_s = 1, where the paper has 20 here.

        Nothing is printed for a week. Printed is how far CNFGNN is from FedAvg in the paper's METR-LA,
        computed from Table 9.
    """),
    "metr_la_20": paragraphs("""
        Budget - 20 of 207 sensors, so that 5 percent are 1 sensor; every 32nd training window, 20 rounds of
        which every 4th is validated, 1 seed. R_s = 1, where the paper has 20 here.

        Printed is how far CNFGNN is from FedAvg in the paper's METR-LA, computed from Table 9.
    """),
    "pems_bay_67": paragraphs("""
        Budget - 67 of 325 sensors, every 64th training window, 32 at a time at a client and 12 at the
        server, 8 rounds of which every 4th is validated, 1 seed. R_s = 1, where the paper has 20.

        Printed is how far CNFGNN is from FedAvg in the paper's PEMS-BAY, computed from Table 9.
    """),
    **dict.fromkeys(
        ("metr_la", "pems_bay"),
        ("As in the paper, of one seed; R_s = 20. CNFGNN against FedAvg is computed from Table 9.",),
    ),
}


def table9(data: str) -> Runs:
    """Return the errors of GRU + FedAvg, of CNFGNN and of our version with means, by what training sees."""
    budget = TABLE9_BUDGETS[data]
    network = TABLE9[network_of(data)]

    def printed(percent: int, place: int) -> dict[str, Printed]:
        return {RMSE: Printed(TABLE9[data][percent][place])} if data in TABLE9 else {}

    fedavg = [
        point(
            "GRU + FedAvg",
            percent,
            "gru_fedavg",
            options=shared.seen(percent),
            settings=shared.SMALL,
            printed=printed(percent, 0),
        )
        for percent in shared.PERCENTAGES
    ]
    cnfgnn = [
        point(
            "CNFGNN",
            percent,
            "cnfgnn",
            options=shared.seen(percent),
            settings={**shared.GRAPH_NETWORK, **budget.alternating},
            printed=printed(percent, 1),
            relative=(Relative(f"GRU + FedAvg {percent}", {RMSE: percent_above(*network[percent])}),),
        )
        for percent in shared.PERCENTAGES
    ]
    means = [
        point(
            "CNFGNN, means",
            percent,
            "cnfgnn",
            options=shared.seen(percent),
            settings={"network": "mean_network", **budget.alternating},
            relative=(Relative(f"GRU + FedAvg {percent}"),),
        )
        for percent in shared.PERCENTAGES
    ]
    return Runs(
        name="table9",
        title="Errors where training sees only a part of the sensors",
        source="Table 9",
        notes=TABLE9_NOTES + TABLE9_NOTES_OF[data],
        metrics=(RMSE,),
        called=CALLED,
        x="sensors seen in training (percent)",
        seeds=budget.seeds,
        options={"rounds": budget.rounds},
        settings={**AS_READ, "patience": 8, **budget.settings},
        quick=shared.QUICK,
        rows=(*fedavg, *cnfgnn, *means),
    )


# ---- Fig. 4: rounds at clients and at the server -----------------------------------------------------------

FIG4_BUDGETS = {
    "metr_la_20": Budget(rounds=6, settings={"every": 128, "eval_every": 2}),
    "metr_la": Budget(rounds=500, settings={"patience": 20}),
}
FIG4_NOTES = paragraphs("""
    What the paper finds - R_c / R_s below 0.5 has lower errors, above 2 fewer bytes.

    Missing readings as for table7.
""")
FIG4_NOTES_OF = {
    "metr_la_20": paragraphs("""
        Budget - 20 of 207 sensors, every 128th training window, 6 rounds of which every 2nd is validated, 1
        seed.
    """),
    "metr_la": ("As in the paper, of one seed.",),
}


def fig4(data: str) -> Runs:
    """Return errors and bytes by R_c, the epochs of a client in a round, and R_s, the passes of the
    server.
    """
    budget = FIG4_BUDGETS[data]
    return Runs(
        name="fig4",
        title="Errors and bytes by rounds at clients and at the server",
        source="Fig. 4, whose values cannot be read off",
        notes=FIG4_NOTES + FIG4_NOTES_OF[data],
        metrics=(RMSE, "bytes_to_best"),
        called={**CALLED, **BYTES_CALLED},
        divided_by={"bytes_to_best": 2**30},
        x="R_s (passes of the server in a round)",
        options={"rounds": budget.rounds},
        settings={**AS_READ, "patience": 5, **budget.settings},
        quick=shared.QUICK,
        rows=tuple(
            point(
                f"R_c = {epochs}",
                passes,
                "cnfgnn",
                label=f"R_c {epochs}, R_s {passes}",
                settings={**shared.GRAPH_NETWORK, "local_epochs": epochs, "server_rounds": passes},
            )
            for epochs in (1, 10, 20)
            for passes in (1, 10, 20)
        ),
    )


PAPER = Paper(
    name="cnfgnn",
    title="Cross-node federated graph neural network for spatio-temporal data modeling",
    authors="Meng, Rambhatla, Liu",
    venue="KDD 2021, arXiv:2106.05223",
    items=(
        *TABLE7_ITEMS,
        shared.TABLE8,
        *on_data(equal, tuple(EQUAL_BUDGETS)),
        *shared.MASK,
        *on_data(table9, shared.DATA),
        *TABLE10,
        *shared.FIG2,
        *FIG3,
        *on_data(fig4, tuple(FIG4_BUDGETS)),
        *shared.FIGA1,
        *shared.FIGA2,
    ),
)
