"""What forecasting costs by closed formulas: the bytes that training sends, which the ledger of a run equals,
and the operations of a device (Meng, Rambhatla and Liu, KDD 2021, Eq. (6) to (10), Tables 2 to 6 and 8).

    N clients, E directed edges without self loops, W weights of a client, S training windows, H hidden width

The paper counts GB of 2^30 bytes, 4 bytes a number, and round numbers of weights (63 000, 64 000, 727
000)."""

__all__ = ["forecast_operations", "training_numbers"]


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
    """Numbers that a round of training sends, up, down and between clients.

    method: a strategy of cnfgnn, gru_fedavg, gru_fmtl, or one that sends nothing in a round (gru_local,
    gru_central). server_rounds: R_s; edges: E, of gru_fmtl."""
    averaged, states = 2 * clients * weights, clients * windows * hidden
    numbers = {
        "at_fedavg": averaged + (2 + 2 * server_rounds) * states,  # Eq. (7)
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
    """Operations of one sensor for one forecast, as Table 8 counts them: a multiplication with its addition
    is one, and a step of a layer has 13 more for each hidden unit."""

    def step(hidden: int) -> int:
        widths = [inputs, *[hidden] * (layers - 1)]
        return sum(3 * hidden * (width + hidden) + 13 * hidden for width in widths)

    return lags * step(encoder) + horizon * (step(decoder) + decoder)
