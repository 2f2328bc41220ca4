"""Gradient boosting on tables: a reference without a graph neural network. Each node is a row of its own
features and, with columns=neighbours, of the means of its neighbours' features and its degree.

Banks use such trees on their own tables today, so a federated graph network has to be better than both rows:
`boosting_local` (every client trains on its own nodes, and nothing is sent) and `boosting_central` (one
participant has all data). The trees are scikit-learn's HistGradientBoostingClassifier. They are fitted in
set-up; there are no rounds, and no file of the model.

Differs from the paper: there is no paper. Egressy et al. (AAAI 2024) compare with boosting on graph features.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from graphfed.errors import InputError, how_to_install
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.common.sizes import GraphExtent
from graphfed.methods.parts import Inputs, Loss, Run, Selection
from graphfed.methods.settings import settings
from graphfed.nn.sparse import SparseMatrix, spmm

#: The log-probability of a class that a client has no training node of: e^-20 is 2e-9.
UNSEEN = -20.0


@settings
class Boosting:
    """Gradient boosting."""

    columns: Literal["own", "neighbours"] = Field(
        default="neighbours",
        description="own: the features of a node; neighbours: these, the means of its neighbours' features, "
        "and its degree",
    )
    trees: int = Field(default=100, ge=1, le=10_000, description="number of trees for each class")
    leaves: int = Field(default=31, ge=2, le=10_000, description="largest number of leaves of a tree")
    shrinkage: float = Field(
        default=0.1, gt=0, le=1, description="factor by which each tree is shrunk (a learning rate)"
    )


@settings
class BoostingConfig:
    """The settings of gradient boosting."""

    run: Run = Run()
    inputs: Inputs = Inputs()
    selection: Selection = Selection()
    loss: Loss = Loss()
    boosting: Boosting = Boosting()


# ---- at the clients ----------------------------------------------------------------------------------------


def table_of(cohort: Cohort, columns: str) -> np.ndarray:
    """Make the table of all rows, [N, F], or [N, 2 F + 1] with the neighbours' columns.

    Only edges inside clients count. A node without neighbours has no value in their columns.
    """
    assert cohort.x is not None
    x = cohort.x.to_dense() if isinstance(cohort.x, SparseMatrix) else cohort.x
    if columns == "own":
        return np.asarray(x.cpu())
    source, target = cohort.edge_index
    weight = cohort.edge_weight
    weight = torch.ones(len(source), device=x.device) if weight is None else weight
    n = cohort.num_rows
    sums = spmm(SparseMatrix.from_coo(target, source, weight.to(x.dtype), (n, n)), x)
    degree = cohort.degree().to(x.dtype)[:, None]
    # 0 / 0 is NaN, which the trees read as a missing value.
    return np.asarray(torch.cat([x, sums / degree, degree], 1).cpu())


def fit(cohort: Cohort, config: BoostingConfig) -> Tensor:
    """Fit the trees of every client on its training nodes, and compute all logits.

    Returns:
        [N, C], logarithms of probabilities; equal ones at a client without training nodes.
    """
    table = table_of(cohort, config.boosting.columns)
    client, y, train = (np.asarray(part.cpu()) for part in (cohort.client, cohort.y, cohort.train))
    weights = None if cohort.class_weights is None else np.asarray(cohort.class_weights.cpu())
    logits = np.zeros((cohort.num_rows, cohort.num_classes))
    for k in range(cohort.num_clients):
        own = client == k
        known = own & train
        if known.any():
            logits[own] = UNSEEN
            classes, found = _fitted(
                table[known], y[known], None if weights is None else weights[y[known]], table[own], config
            )
            logits[np.ix_(own, classes)] = found
    return torch.from_numpy(logits).to(cohort.y.device, torch.get_default_dtype())


def _fitted(
    table: np.ndarray, y: np.ndarray, weight: np.ndarray | None, rows: np.ndarray, config: BoostingConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Fit trees to a table, and return the classes and their log-probabilities for other rows."""
    classes = np.unique(y)
    if len(classes) == 1:
        return classes, np.zeros((len(rows), 1))
    model = _classifier()(
        max_iter=config.boosting.trees,
        max_leaf_nodes=config.boosting.leaves,
        learning_rate=config.boosting.shrinkage,
        # The library's default of 20 hardly splits the table of a client with few labels.
        min_samples_leaf=min(20, max(1, len(y) // 20)),
        early_stopping=False,
        random_state=config.run.seed % 2**32,
    )
    model.fit(table, y, sample_weight=weight)
    return classes, np.log(model.predict_proba(rows).clip(np.exp(UNSEEN)))


def _classifier() -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError as error:
        raise InputError(f"gradient boosting needs scikit-learn: {how_to_install('boosting')}") from error
    return HistGradientBoostingClassifier


def count_checkpoint(extent: GraphExtent, config: BoostingConfig) -> int:
    """Return 0: nothing changes from round to round."""
    return 0


def target_logits(cohort: Cohort, logits: Tensor, target: str) -> Tensor:
    """Select the logits of a target's nodes, [n, C]."""
    return logits.index_select(0, cohort.rows(target))


# ---- the program over places -------------------------------------------------------------------------------


def setup(fed: Federation, data: Located, task: Task, config: BoostingConfig) -> State:
    """Fit the trees at every client; nothing is sent."""
    return State({}, (data, fed.clients.run(fit, data, config)))


def round(fed: Federation, state: State, config: BoostingConfig, number: int) -> State:
    """Return the state; the trees are fitted already."""
    return state


def predict(fed: Federation, state: State, config: BoostingConfig, target: str) -> Located:
    """Predict at every client with its own trees: logits [n, C]."""
    return fed.clients.run(target_logits, *state.prepared, target)


LOCAL = Method(
    name="boosting_local",
    summary="gradient-boosted trees of every client on its own table; nothing is sent",
    paper="no paper: the reference without a graph neural network",
    config=BoostingConfig,
    setup=setup,
    round=round,
    predict=predict,
    checkpoint=count_checkpoint,
    state=StateValues(model=()),
    sends=Sent(summary="nothing", protection="nothing is sent"),
    defaults={"rounds": 1},
)
CENTRAL = replace(
    LOCAL,
    name="boosting_central",
    summary="gradient-boosted trees on the table of all clients; the upper reference without a network",
    pooled=True,
    sends=Sent(summary="all data, before training", protection="none: one participant has everything"),
)
