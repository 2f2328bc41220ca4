"""What runs at the places of a deployment under test: a program that says what each of them was started with,
for `test_operator_rules`, and a site's own rule for jobs, for `test_startup_kit_copies`."""

import torch
from nvflare.apis.app_validation import AppValidator

from graphfed.files import write_json


def report_place(fed, arguments, log, place):
    """Write down the threads and the device that this place computes with."""
    content = {"threads": torch.get_num_threads(), "device": str(fed.device)}
    write_json(place.runs / arguments["run"] / "report.json", content)


class RefuseEveryJob(AppValidator):
    """A site's rule that lets no job in."""

    def validate(self, app_folder):
        return "this site is closed for stocktaking", {}
