"""A program of deployed places that says what each of them was started with, for `test_operator_rules`."""

import torch

from graphfed.files import write_json


def report_place(fed, arguments, tell, place):
    """Write down the threads and the device that this place computes with."""
    content = {"threads": torch.get_num_threads(), "device": str(fed.device)}
    write_json(place.runs / arguments["run"] / "report.json", content)
