"""The cost of forecasting in closed formulas: the numbers that training sends, and a client's operations.

The ledger of a run equals these formulas (Eq. (6) to (10), Tables 2 to 6 and 8 of the paper).

    N clients, E directed edges without self loops, W weights of a client, S training windows, H hidden width

The paper's GB are 2^30 bytes, a number has 4 bytes, and numbers of weights are rounded (63 000, 64 000,
727 000).
"""


def training_numbers(
    method: str,
    *,
    clients: int,
    weights: int = 0,
    windows: int = 0,
    hidden: int = 64,
    server_rounds: int = 1,
    edges: int = 0,
) -> int:
    """Return how many numbers a round of training sends, in all directions together: 0 for methods that send
    nothing in a round.

    method: a strategy of cnfgnn, or gru_fedavg, gru_fmtl, gru_local or gru_central. server_rounds: R_s, for
    alternating training. edges: for gru_fmtl.
    """
    # Weights go up and down; `states` is one message of all encodings, embeddings or gradients of a pass.
    averaged, states = 2 * clients * weights, clients * windows * hidden
    numbers = {
        # Encodings once and final embeddings once; in each pass of the server embeddings and their gradients.
        "at_fedavg": averaged + (2 + 2 * server_rounds) * states,  # Eq. (7)
        # Encodings, embeddings and the gradients of both
        "sl": 4 * states,  # Eq. (8)
        "sl_fedavg": averaged + 4 * states,  # Eq. (9)
        "at": (2 + 2 * server_rounds) * states,  # Eq. (10)
        "gru_fedavg": averaged,
        "gru_fmtl": edges * weights,  # Eq. (6)
        "centralised": 0,
        "gru_local": 0,
        "gru_central": 0,
    }
    return numbers[method]


def forecast_operations(
    *, encoder: int, decoder: int, layers: int = 1, lags: int = 12, horizon: int = 12, inputs: int = 2
) -> int:
    """Return the operations of one sensor for one forecast (Table 8).

    A multiplication with its addition is one operation, and a step of a layer has 13 more for each hidden
    unit. encoder, decoder: hidden widths; layers: of each.
    """

    def step(hidden: int) -> int:
        widths = [inputs, *[hidden] * (layers - 1)]
        return sum(3 * hidden * (width + hidden) + 13 * hidden for width in widths)

    return lags * step(encoder) + horizon * (step(decoder) + decoder)
