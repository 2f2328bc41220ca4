"""How the classes of neighbours depend on a node's own class: estimated from counts, given the noise.

    M^r_kc    number of pairs of a training node of class k and a neighbour elsewhere that released class c
    M^o_kc    the same for neighbours at the node's client, whose predicted classes c the client knows
    T         probabilities of randomised response, [C, C] (`privacy.local.response_matrix`)
    Q_kc      probability that a neighbour of a node of class k is predicted to be of class c

A released class c of a neighbour has probability (Q T)_kc, because the noise does not depend on k. Q
maximises

    sum_kc M^r_kc log (Q T)_kc + M^o_kc log Q_kc + s sum_kc q_c log Q_kc        (a)

where q is the distribution of the predicted classes of all these neighbours, estimated in the same way, and
s is `smoothing`. The last term counts as s neighbours with distribution q for every class k. It decides if
epsilon is small: then T is nearly constant, the counts say little about Q, the rows of Q are near q, and
neighbours have no influence. Frequencies as an estimate of Q T would take the noise of the counts for
differences between classes. (a) is concave. Its maximum is found by expectation maximisation: the expected
number of neighbours with predicted class c is

    E_kc = Q_kc sum_z T_cz M^r_kz / (Q T)_kz + M^o_kc + s q_c,   then   Q_kc = E_kc / sum_c E_kc        (b)
"""

import torch
from torch import Tensor

from graphfed.privacy.local import response_matrix

#: Expectation maximisation ends when no probability changes by more than TOLERANCE, or after STEPS steps.
TOLERANCE, STEPS = 1e-9, 3000


def maximise(released: Tensor, own: Tensor, response: Tensor, prior: Tensor) -> Tensor:
    """Maximise (a) by expectation maximisation: Q, [n, C] float64, all above 0, for n classes of nodes.

    prior: [n, C] or [C], the numbers s q_c, all above 0.
    """
    # Starting from the prior: without counts it is the result.
    found = (prior / prior.sum(-1, keepdim=True)).expand(own.shape)
    for _ in range(STEPS):
        # (b)
        expected = found * ((released / (found @ response)) @ response.t()) + own + prior
        before, found = found, expected / expected.sum(1, keepdim=True)
        if float((found - before).abs().max()) < TOLERANCE:
            break
    return found


def class_likelihoods(counts: Tensor, epsilon: float, smoothing: float) -> Tensor:
    """Estimate how likely each class of a neighbour is, by the class of the node, from the counts [2, C, C]
    M^r and M^o.

    Returns [2, C, C], log (Q T)_kc for released classes, and log Q_kc for those that the client knows, in the
    default dtype.
    """
    # float64: near the maximum, steps of expectation maximisation are small.
    released, own = counts.double()
    num_classes = len(own)
    response = response_matrix(epsilon, num_classes).to(counts.device)
    # q, of which one neighbour of each class is assumed to have been seen.
    overall = maximise(
        released.sum(0, keepdim=True), own.sum(0, keepdim=True), response, torch.ones_like(own[:1])
    )
    # Q of every class k, drawn towards q by `smoothing` neighbours
    found = maximise(released, own, response, smoothing * overall)
    return torch.stack([found @ response, found]).log().to(torch.get_default_dtype())
